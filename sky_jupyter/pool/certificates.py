"""A pool's own certificate authority and the one certificate that its members share.

Whoever holds the key is a member: the key is made for one pool, travels over the machines' own
channel, and lies in files that only the user can read.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

_DAYS = 365


@dataclass(frozen=True)
class Certificates:
    """PEM texts: the authority's certificate, the members' certificate and their key."""

    authority: bytes
    certificate: bytes
    key: bytes

    def files(self) -> dict[str, bytes]:
        """What goes into a pool's folder, by file name; see `node.scheduler.security`."""
        return {"pool.ca": self.authority, "pool.cert": self.certificate, "pool.key": self.key}


def make(pool: str) -> Certificates:
    """Make an authority and a certificate for the pool of this id (ECDSA on P-256)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.timezone.utc)

    authority_key, member_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def sign(subject: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> bytes:
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(f"sky authority {pool}"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # A machine's clock may run a little behind the notebook's.
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    return Certificates(
        authority=sign(f"sky authority {pool}", authority_key, authority=True),
        certificate=sign(f"sky member {pool}", member_key, authority=False),
        key=member_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
