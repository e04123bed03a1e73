"""Outputs of a marlin layer, right and wrong in known ways, and what the probe's check says of each."""

import torch

from smgate_agent.probe import ending, marlin, workload

TOKENS = 16


def _made(name, right, wrong):
    if name == "right":
        return right
    if name == "zeros":
        return torch.zeros_like(right)
    if name == "nan":
        return torch.where(torch.arange(right.shape[1]) == 5, float("nan"), right)
    if name == "ten percent":
        return right * 0.9
    if name == "cancelled":
        return right.where(right.abs() > 0.03 * right.square().mean().sqrt(), 0.0)
    if name == "one in two hundred":
        return right.where(torch.arange(right.numel()).view_as(right) % 200 > 0, 0.0)
    if name == "one row":
        return torch.cat((right[:1].flip(-1), right[1:]))
    return wrong[name]


def judged(names):
    source = workload.Source(marlin._shape({}), "cpu", marlin.SEED)
    experts = source.experts()
    batch = source.batch(TOKENS)
    references = marlin.references(batch, experts)
    right, swiglu, swapped = references
    wrong = {"swiglu": swiglu, "swapped": swapped}
    answers = {}
    for name in names:
        done = marlin.Run()
        output = _made(name, right, wrong).to(torch.bfloat16)
        try:
            marlin._judge(output, references, done)
        except ending.EndedError as ended:
            answers[name] = [ended.outcome, ended.reason, done.control]
        else:
            answers[name] = ["passed", "", done.control]
    return answers
