"""Memory and time that `sleuth start` needs on this machine, predicted before it begins."""

from sleuth.config import recipe
from sleuth.model.policy import select_device
from sleuth.model.shapes import shape_of_folder
from sleuth.page.document import duration
from sleuth.start.sizes import Sizes
from sleuth.start.stages import StartOptions
from sleuth.train.accelerators import GIB
from sleuth.train.plan import Models, local_device, make_plan, require_fits


def forecast(options: StartOptions, sizes: Sizes) -> list[str]:
    """Predict the memory and time of training; raises ConfigError if it cannot fit."""
    config = recipe.compose({"model": {"policy": options.model}, "world": {}}, [*sizes.agent, *sizes.training])
    device = select_device()
    warning = require_fits(config, device)
    sheet, free = local_device(device)
    models = Models.of(config, lambda name: shape_of_folder(recipe.resolve_policy(name)))
    plan = make_plan(config, sheet, models, capacity=free)
    step, longest = plan.seconds.total, plan.upper_bound.total
    lines = [
        f"memory       {plan.footprint.needed / GIB:.1f} of {free / GIB:.1f} GiB free on {sheet.label or sheet.name}",
        f"training     {sizes.steps} steps of {sizes.questions} x {sizes.samples} episodes, about {step:.2g} s a step "
        f"(at most {longest:.2g}): {duration(sizes.steps * step)}; other stages not included",
    ]
    return [*lines, *([f"warning      {warning}"] if warning else [])]
