"""From a TARGET's words to a plan, for every command that needs one."""

from __future__ import annotations

from memfit.core.results import Plan


def planned(
    target: str,
    settings: list[str],
    *,
    budget: str | None,
    device: str | None,
    host_budget: str | None,
    fidelity: str,
    plan_file: str | None = None,
    largest_batch: bool = False,
) -> Plan:
    """The plan of a file, or the one made for the budget (which may say that nothing fits). Raises UsageError."""
    from memfit.jobs.targets import parse_settings
    from memfit.plan import make_plan, read_plan
    from memfit.plan.files import check_belongs
    from memfit.recipes import load
    from memfit.train.probing import barred_strategies

    job = load(target, parse_settings(settings))
    if plan_file is not None:
        from memfit.jobs.identity import model_hash
        from memfit.trace import FakeWorld, fake_job

        made = read_plan(plan_file)
        check_belongs(made, model_hash(fake_job(job, FakeWorld()).model))
        return made
    barred, notes = barred_strategies(job)
    return make_plan(job, budget=budget, device=device, host_budget=host_budget, fidelity=fidelity, target=target,
                     barred=barred, notes=notes, want_largest_batch=largest_batch)
