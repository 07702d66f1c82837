"""The exceptions of Horovod's elastic mode."""

from ._core import RingmasterError

# What a collective that fails raises. In an elastic run: restore the state, and go on in the next round.
HorovodInternalError = RingmasterError


class HostsUpdatedInterrupt(RuntimeError):
    """The members of the job have changed: go on in a new round, with the state as it is.

    Attributes:
        skip_sync: members were only removed, so the state of those left needs no synchronization.
    """

    def __init__(self, skip_sync: bool = False):
        super().__init__("the members of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is of another version than the one that this package was built for."""

    def __init__(self, name: str, version: str, installed_version: str):
        super().__init__(
            f"Framework {name} installed with version {installed_version} but found version {version}.\n"
            "This can result in unexpected behavior including runtime errors."
        )
        self.name, self.version, self.installed_version = name, version, installed_version
