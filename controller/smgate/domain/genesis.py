"""What a new log begins with: the shipped gate, policy and known issues, as events like any other."""

from __future__ import annotations

from smgate.domain import policy, rulings, shipped_issues
from smgate.domain.events import Event

REASON = "Shipped with this release."


def events(first: policy.Policy | None = None) -> tuple[Event, ...]:
    """The first events of an empty log; `first` is a policy other than the shipped one."""
    return (
        rulings.GatePublished(gate=policy.KIMI_K3, reason=REASON),
        rulings.PolicyPublished(policy=first or policy.Policy(), reason=REASON),
        *(rulings.IssuePublished(issue=issue, reason=REASON) for issue in shipped_issues.ALL),
    )
