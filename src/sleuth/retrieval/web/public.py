"""Which addresses lie on the public internet: what a page of the web may make this machine connect to."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

# IANA's special-purpose registries, where the standard library's own verdict is missing or changed between versions.
CLOSED_V4 = tuple(
    map(IPv4Network, ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "224.0.0.0/3"))
)
# The only part of IPv6 from which public addresses are given out, less what is set apart in it.
GLOBAL_V6 = IPv6Network("2000::/3")
CLOSED_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
# Addresses that are roads to an IPv4 address: mapped, NAT64 (RFC 6052) and 6to4 (RFC 3056), with the bits after it.
EMBEDDED = {IPv6Network("::ffff:0:0/96"): 0, IPv6Network("64:ff9b::/96"): 0, IPv6Network("2002::/16"): 80}


def public(address: Address) -> bool:
    """Whether the address, and the IPv4 address it may carry inside, belongs to a host of the public internet."""
    match address:
        case IPv4Address():
            return address.is_global and not any(address in network for network in CLOSED_V4)
        case IPv6Address():
            carried = _carried(address)
            return _public_v6(address) if carried is None else public(carried)


def _public_v6(address: IPv6Address) -> bool:
    # A scope (fe80::1%eth0) ties an address to one of this machine's own networks.
    if address.scope_id is not None:
        return False
    return address in GLOBAL_V6 and address.is_global and not any(address in network for network in CLOSED_V6)


def _carried(address: IPv6Address) -> IPv4Address | None:
    for network, after in EMBEDDED.items():
        if address in network:
            return IPv4Address(int(address) >> after & 0xFFFFFFFF)
    return None
