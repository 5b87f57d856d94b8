"""
Certificates for tests of TLS.
"""

from __future__ import annotations

import datetime
import os

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from twisted.internet.ssl import Certificate, CertificateOptions, PrivateCertificate


def certificate(host: str) -> PrivateCertificate:
    """
    @param host: Whom it is for.
    @return: A certificate that signs itself, with its key.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = made.public_bytes(serialization.Encoding.PEM)
    text += key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return PrivateCertificate.loadPEM(text)


def selfSigned(folder: str, host: str) -> tuple[CertificateOptions, str]:
    """
    Make a certificate that signs itself, and a folder of trust roots.

    @param folder: Made, to hold it as a trust root.
    @param host: Whom it is for.
    @return: The server's options, and C{folder}.
    """
    made = certificate(host)
    os.makedirs(folder)
    with open(os.path.join(folder, "root.pem"), "wb") as file:
        file.write(Certificate.dumpPEM(made))  # Without its key.
    return made.options(), folder
