"""Encoders and language services as one Ray Serve application: ``serve run services.fleet:app`` (needs epd-pair[fleet])."""

from typing import TYPE_CHECKING

from services.fleet.options import FleetOptions

if TYPE_CHECKING:
    from ray.serve import Application


# The annotation is a class, and not its name, since Serve makes the options of what it finds there.
def app(options: FleetOptions) -> "Application":
    """The application as Serve's arguments (``args`` of a config file) want it.

    Raises:
        ImportError: Ray Serve is not installed.
        ValueError: a setting is none of its service.
    """
    try:
        from services.fleet.application import application
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise ImportError("services.fleet needs Ray Serve: pip install 'epd-pair[fleet]'") from error
    return application(options)
