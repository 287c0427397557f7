"""TLS certificates of a pool: its own authority and one shared certificate.

The key authenticates members. It is made for one pool, sent over the machines' own channel, and stored in files
that only the user can read.
"""

from __future__ import annotations

import datetime

# Valid from the epoch to "no expiry" (RFC 5280): trust ends with the pool, as its keys are nowhere else.
# A machine's clock that is wrong by years, or is set during a run, must not disconnect the pool's members.
_FIRST = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.timezone.utc)

# The files in a pool's folder: the authority's certificate, and the members' certificate and key.
NAMES = ("pool.ca", "pool.cert", "pool.key")


def make(pool: str) -> dict[str, bytes]:
    """Make a certificate authority and a certificate for a pool; return their files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

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
            .not_valid_before(_FIRST)
            .not_valid_after(_LAST)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    texts = (
        sign(f"sky authority {pool}", authority_key, authority=True),
        sign(f"sky member {pool}", member_key, authority=False),
        member_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
    return dict(zip(NAMES, texts, strict=True))
