"""Outputs of a marlin layer, right and wrong in known ways, and what the probe's check says of each."""

import torch

from smgate_agent.probe import ending, marlin, reference, workload

TOKENS = 16


def _made(name, right, batch, experts):
    if name == "right":
        return right
    if name == "zeros":
        return torch.zeros_like(right)
    if name == "nan":
        return torch.where(torch.arange(right.shape[1]) == 5, float("nan"), right)
    if name == "ten percent":
        return right * 0.9
    if name == "one row":
        return torch.cat((right[:1].flip(-1), right[1:]))
    activation = {"swiglu": reference.swiglu, "swapped": reference.swapped}[name]
    return marlin.expected(batch, experts, activation)


def judged(names):
    source = workload.Source(marlin._shape({}), "cpu", marlin.SEED)
    experts = source.experts()
    batch = source.batch(TOKENS)
    right = marlin.expected(batch, experts, reference.situ)
    answers = {}
    for name in names:
        done = marlin.Run()
        output = _made(name, right, batch, experts).to(torch.bfloat16)
        try:
            marlin._judge(output, batch, experts, done)
        except ending.EndedError as ended:
            answers[name] = [ended.outcome, ended.reason, done.control]
        else:
            answers[name] = ["passed", "", done.control]
    return answers
