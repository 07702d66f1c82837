"""The image that test pods run: Debian's static busybox under every name that it knows."""

import pathlib
import shutil

from shell import ClusterError, run

IMAGE = "localhost/ringmaster/busybox:1"
OTHER_USER = 12345
IMAGE_OF_OTHER_USER = f"localhost/ringmaster/busybox-{OTHER_USER}:1"  # whose user no template tells


def build(state: pathlib.Path, reference: str = IMAGE, user: int = 0) -> pathlib.Path:
    """A docker-archive of the image, made once."""
    archive = state / ("busybox.tar" if user == 0 else f"busybox-{user}.tar")
    if archive.exists():
        return archive
    busybox = shutil.which("busybox")
    if busybox is None:
        raise ClusterError("busybox is not installed; `make deps-cluster` installs what the cluster's tests need")
    root = state / "busybox"
    shutil.rmtree(root, ignore_errors=True)
    (root / "bin").mkdir(parents=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    shutil.copyfile(busybox, root / "bin" / "busybox")
    (root / "bin" / "busybox").chmod(0o755)
    for name in run([busybox, "--list"]).split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    storage = ["--root", state / "buildah", "--runroot", state / "buildah-run", "--storage-driver", "vfs"]
    container = run(["buildah", *storage, "from", "scratch"], quiet=True).strip()
    run(["buildah", *storage, "copy", container, root, "/"], quiet=True)
    run(["buildah", *storage, "config", "--env", "PATH=/bin", "--user", f"{user}:{user}", "--cmd", '["/bin/sh"]', container], quiet=True)
    run(["buildah", *storage, "commit", container, f"docker-archive:{archive}.new:{reference}"], quiet=True)
    run(["buildah", *storage, "rm", container], quiet=True)
    pathlib.Path(f"{archive}.new").rename(archive)
    return archive
