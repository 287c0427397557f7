"""The keys and certificates of a cluster, and the files that its programs read to know one another."""

from __future__ import annotations

import datetime
import ipaddress
import json
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.kubernetes import admission

_DAYS = 30


def write(folder: Path, addresses: list[str], node: str) -> None:
    """Write all of it into a run's folder, for an API server that is reached at these addresses."""
    pki = folder / "pki"
    pki.mkdir()
    key, authority = ec.generate_private_key(ec.SECP256R1()), _name("sky-tests")
    _write_key(pki / "ca.key", key)
    own = _certificate(authority, key, authority, key, [], is_authority=True)
    _write_certificate(pki / "ca.crt", own)
    api = ec.generate_private_key(ec.SECP256R1())
    _write_key(pki / "api.key", api)
    _write_certificate(pki / "api.crt", _certificate(_name("kube-apiserver"), api, authority, key, addresses))
    accounts = ec.generate_private_key(ec.SECP256R1())
    _write_key(pki / "accounts.key", accounts)
    public = accounts.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (pki / "accounts.pub").write_bytes(public)
    admin, kubelet = secrets.token_urlsafe(), secrets.token_urlsafe()
    rows = [f"{admin},admin,admin,system:masters", f"{kubelet},system:node:{node},{node},system:nodes"]
    _private(folder / "static-tokens.csv", "".join(f"{row}\n" for row in rows))
    for name, token in (("admin", admin), ("node", kubelet)):
        _private(folder / f"{name}.conf", kubeconfig("https://127.0.0.1:443", pki / "ca.crt", {"token": token}))
    review = f"http://127.0.0.1:{admission.TOKEN_PORT}/"
    (folder / "tokens.conf").write_text(kubeconfig(review, None, {}))
    _private(folder / "settings.json", json.dumps({"admin": admin}))


def kubeconfig(server: str, authority: Path | None, user: dict[str, object], namespace: str = "default") -> str:
    """A kubeconfig file with one cluster, one user and one context, which is called ``tests``."""
    cluster = {"server": server} | ({"certificate-authority": str(authority)} if authority else {})
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "user", "namespace": namespace}}],
        "current-context": "tests",
    }
    return json.dumps(content, indent=1)


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    addresses: list[str],
    *,
    is_authority: bool = False,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if is_authority:
        builder = builder.add_extension(_usage(certificates=True), critical=True)
    else:
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        names += [x509.DNSName(name) for name in ("localhost", "kubernetes.default.svc")]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(_usage(certificates=False), critical=True)
    return builder.sign(signer, hashes.SHA256())


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    _private(path, text.decode())


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
