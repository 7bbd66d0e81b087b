"""Secrets in a node's journals and files, and their absence from the bundle for a vendor's support."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from tests import ROOT
from tests.campaign._hostile.field import Field, Reached, way
from tests.campaign._hostile.words import payload

Try = Callable[[random.Random], None]


@way("node", "bundle", "key", share=300)
def bundle(field: Field) -> Try:
    """Try secrets at any place of an examination, and look for them in its bundle."""
    sys.path.append(str(ROOT / "plugins/module_utils"))
    from gpuprov.doctor.bundle.bundle import compose
    from tests.unit.doctor.machines import as_examined
    from tests.unit.doctor.test_bundle import leaves, machine, put

    places = list(leaves(machine()))

    def once(rng: random.Random) -> None:
        """Make one try: put a secret at twelve places, and raise Reached if the bundle contains it."""
        line = rng.choice(SECRETS).replace("SECRET", field.secret)
        noise = payload(rng, field, "odd", "terminal", "page")
        result = machine()
        for path, old in rng.sample(places, 12):
            put(
                result, path, rng.choice([line, f"{old} {line}", f"{old}\n{line}\n{noise}", f"{line}\n{old}"])
            )
        for name, text in compose(as_examined(result)).files.items():
            if field.secret in text:
                at = text.index(field.secret)
                raise Reached("key", f"{name} has {text[max(0, at - 60) : at + 30]!r} of {line!r}")

    return once


SECRETS = (
    "password=SECRET",
    'PASSWORD="SECRET"',
    "export DB_PWD=SECRET",
    "MYSQL_PWD=SECRET",
    "Authorization: Bearer SECRET",
    "authorization: basic SECRET",
    "https://user:SECRET@registry.example/v2",
    "https://user:p@SECRET@registry.example/v2",
    "https://bucket.s3.example/x?X-Amz-Signature=SECRET&X-Amz-Date=1",
    "https://blob.example/x?sv=1&sig=SECRET",
    '{"auths": {"r": {"auth": "SECRET"}}}',
    '{"log": "{\\"password\\": \\"SECRET\\"}"}',
    "dockerd[1]: time=now msg=login token SECRET",
    "docker login -u me -p SECRET registry",
    "curl -H 'X-Api-Key: SECRET' host",
    "curl -u me:SECRET host",
    "eyJhbGciOiJIUzI1NiJ9.SECRET.c2ln",
    "ghp_SECRET",
    "hf_SECRET",
    "AKIASECRET",
    "aws_secret_access_key = SECRET",
    "HF_TOKEN: SECRET",
    "wandb login SECRET",
    "NGC_API_KEY=SECRET",
    "kubelet --token=SECRET",
    "kubelet --token SECRET",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nSECRET\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\nSECRET",
    "client_secret: 'SECRET'",
    "Set-Cookie: session=SECRET; Path=/",
    "passphrase: SECRET",
    "ENCRYPTION_KEY=SECRET",
    "redis://:SECRET@host:6379/0",
    "machine host login me password SECRET",
    "//registry.example/:_authToken=SECRET",
    "sshpass -p SECRET ssh host",
    "mongodb+srv://u:SECRET@h/db",
    "<password>SECRET</password>",
)
"""Forms of secrets in journals and reports."""
