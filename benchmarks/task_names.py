"""Tasks of the text generator, as a benchmark's ``--tasks`` names them."""

from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import UserError


def chosen_tasks(names: str) -> list[str]:
    """The comma-separated tasks, or all.

    Raises:
        UserError: one of them does not exist.
    """
    chosen = [name.strip() for name in names.split(",") if name.strip()] or list(tasks.TASKS)
    for name in chosen:
        if name not in tasks.TASKS:
            raise UserError(f"unknown task {name!r}, expected one of {', '.join(tasks.TASKS)}")
    return chosen
