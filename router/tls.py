"""TLS on both sides of the router: a certificate to show to clients, and what workers are trusted by."""

import ssl
from pathlib import Path

from router.config import ConfigError, RouterConfig


def server_context(config: RouterConfig) -> ssl.SSLContext | None:
    """For both ports; None: they speak plain HTTP.

    Raises:
        ConfigError: certificate or key can't be read, or they don't belong together.
    """
    if config.tls_cert_file is None or config.tls_key_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for key, file in (("tls_cert_file", config.tls_cert_file), ("tls_key_file", config.tls_key_file)):
        _check_readable(key, file)
    try:
        # With a password an encrypted key is an error at once; without, OpenSSL would ask for it at the terminal.
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls_key_file: can't be used with tls_cert_file: {_reason(error)}") from None
    return context


def worker_context(config: RouterConfig) -> ssl.SSLContext | None:
    """For https workers; None: the system's own trust.

    Raises:
        ConfigError: the file can't be read or holds no certificate.
    """
    if config.worker_ca_file is None:
        return None
    _check_readable("worker_ca_file", config.worker_ca_file)
    try:
        return ssl.create_default_context(cafile=config.worker_ca_file)
    except OSError as error:
        raise ConfigError(f"worker_ca_file: holds no usable certificate: {_reason(error)}") from None


def _check_readable(key: str, file: Path) -> None:
    try:
        file.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{key}: {file} can't be read: {error.strerror}") from None


def _reason(error: Exception) -> str:
    return (error.reason or "not PEM") if isinstance(error, ssl.SSLError) else str(error)
