"""Certificates and kubeconfigs of the test cluster, by openssl. Made once per state directory."""

import pathlib
import textwrap
from typing import Sequence

from shell import run

SERVICE_IP = "10.96.0.1"


class Pki:
    def __init__(self, state: pathlib.Path) -> None:
        self.directory = state / "pki"
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.path("ca.crt").exists():
            run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=test-cluster-ca",
                 "-keyout", self.path("ca.key"), "-out", self.path("ca.crt")], quiet=True)
        if not self.path("sa.key").exists():
            run(["openssl", "genrsa", "-out", self.path("sa.key"), "2048"], quiet=True)
            run(["openssl", "rsa", "-in", self.path("sa.key"), "-pubout", "-out", self.path("sa.pub")], quiet=True)

    def path(self, name: str) -> pathlib.Path:
        return self.directory / name

    def certificate(self, name: str, common_name: str, organization: str = "", alternatives: Sequence[str] = ()) -> None:
        """Makes <name>.crt and <name>.key, good for both ends of a connection."""
        if self.path(f"{name}.crt").exists():
            return
        subject = (f"/O={organization}" if organization else "") + f"/CN={common_name}"
        extension = "extendedKeyUsage=serverAuth,clientAuth\n"
        if alternatives:
            extension += "subjectAltName=" + ",".join(alternatives) + "\n"
        self.path(f"{name}.ext").write_text(extension)
        run(["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", self.path(f"{name}.key"),
             "-out", self.path(f"{name}.csr")], quiet=True)
        run(["openssl", "x509", "-req", "-in", self.path(f"{name}.csr"), "-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"),
             "-CAcreateserial", "-days", "3650", "-extfile", self.path(f"{name}.ext"), "-out", self.path(f"{name}.crt")], quiet=True)

    def kubeconfig(self, name: str, server: str, common_name: str, organization: str = "") -> pathlib.Path:
        self.certificate(name, common_name, organization)
        path = self.path(f"{name}.kubeconfig")
        path.write_text(textwrap.dedent(f"""\
            apiVersion: v1
            kind: Config
            clusters:
            - name: test
              cluster: {{server: "{server}", certificate-authority: "{self.path('ca.crt')}"}}
            users:
            - name: {name}
              user: {{client-certificate: "{self.path(name + '.crt')}", client-key: "{self.path(name + '.key')}"}}
            contexts:
            - name: test
              context: {{cluster: test, user: {name}}}
            current-context: test
            """))
        path.chmod(0o600)
        return path
