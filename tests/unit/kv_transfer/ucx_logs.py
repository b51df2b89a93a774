"""What UCX writes with ``UCX_PROTO_INFO``, for tests.

"Seen" is from runs on a machine without GPU and RDMA: word for word but for the host's name and the process id, which
are made the same. What is marked as not seen was written by hand.
"""

PID = 16611

# Seen: UCX 1.23 of nixl 1.5.1, host memory, two processes of one machine; the default links.
OTHER_OPERATION = """\
[1796052518.031152] [host:16611:0]      ucp_worker.c:1997 UCX  INFO    d16611 intra-node cfg#1 rma_am(tcp/lo)  \
amo_am(tcp/lo)  am(tcp/lo cma/memory)  ka(tcp/lo)
[1796052518.031679] [host:16611:0]   +--------+-------------+-----------------------------------+
[1796052518.031679] [host:16611:0]   | d16611 intra-node cfg#1                                  |
[1796052518.031679] [host:16611:0]   | remote memory write by ucp_put* from host memory to host |
[1796052518.031679] [host:16611:0]   +--------+-------------+-----------------------------------+
[1796052518.031679] [host:16611:0]   | Range  | Description |              Config               |
[1796052518.031679] [host:16611:0]   +--------+-------------+-----------------------------------+
[1796052518.031679] [host:16611:0]   | 0..inf | zero-copy   | 52% on tcp/lo and 48% on tcp/eth0 |
[1796052518.031679] [host:16611:0]   +--------+-------------+-----------------------------------+
"""
CMA = """\
[1796052518.036850] [host:16611:0]   +--------+-------------+-------------------------------------------+
[1796052518.036850] [host:16611:0]   | d16611 intra-node cfg#1                                          |
[1796052518.036850] [host:16611:0]   | remote memory read by ucp_get*(multi) into host memory from host |
[1796052518.036850] [host:16611:0]   +--------+-------------+-------------------------------------------+
[1796052518.036850] [host:16611:0]   | Range  | Description |                  Config                   |
[1796052518.036850] [host:16611:0]   +--------+-------------+-------------------------------------------+
[1796052518.036850] [host:16611:0]   | 0..inf | zero-copy   | cma/memory                                |
[1796052518.036850] [host:16611:0]   +--------+-------------+-------------------------------------------+
"""
# Seen: UCX_TLS=tcp; also what UCX_TLS=posix,sysv,tcp gives: shared memory alone can't serve NIXL's reads.
TCP = """\
[1796052530.096534] [host:16611:0]   +--------+--------------------+------------------------------------+
[1796052530.096534] [host:16611:0]   | d16896 intra-node cfg#1                                          |
[1796052530.096534] [host:16611:0]   | remote memory read by ucp_get*(multi) into host memory from host |
[1796052530.096534] [host:16611:0]   +--------+--------------------+------------------------------------+
[1796052530.096534] [host:16611:0]   | Range  |    Description     |               Config               |
[1796052530.096534] [host:16611:0]   +--------+--------------------+------------------------------------+
[1796052530.096534] [host:16611:0]   | 0..inf | software emulation | tcp/lo                             |
[1796052530.096534] [host:16611:0]   +--------+--------------------+------------------------------------+
"""
# Seen: UCX_PROTO_INFO=used, which UCX writes when the connection ends.
USED = """\
[1796052551.357306] [host:16611:0]   +-------+--------+-------------+-----------------------------------+
[1796052551.357306] [host:16611:0]   | d17138 intra-node cfg#1                                          |
[1796052551.357306] [host:16611:0]   | remote memory read by ucp_get*(multi) into host memory from host |
[1796052551.357306] [host:16611:0]   +-------+--------+-------------+-----------------------------------+
[1796052551.357306] [host:16611:0]   | Count | Range  | Description |              Config               |
[1796052551.357306] [host:16611:0]   +-------+--------+-------------+-----------------------------------+
[1796052551.357306] [host:16611:0]   |     9 | 0..inf | zero-copy   | cma/memory                        |
[1796052551.357306] [host:16611:0]   +-------+--------+-------------+-----------------------------------+
"""
# Seen: UCX_TLS=tcp and UCX_PROTO_EMULATION_ENABLE=n: a table without a row, then an error.
NO_PROTOCOL = """\
[1796053324.000159] [host:16611:0]   +-------+-------------+--------------------------------------------+
[1796053324.000159] [host:16611:0]   | d intra-node cfg#1                                               |
[1796053324.000159] [host:16611:0]   | remote memory read by ucp_get*(multi) into host memory from host |
[1796053324.000159] [host:16611:0]   +-------+-------------+--------------------------------------------+
[1796053324.000159] [host:16611:0]   | Range | Description |                   Config                   |
[1796053324.000159] [host:16611:0]   +-------+-------------+--------------------------------------------+
[1796053324.000174] [host:16611:0]  proto_reconfig.c:67   UCX  ERROR No zero-copy protocol found for get into host \
from host, 1048576 bytes. Please check for proper GPU and/or HCA support, or set UCX_PROTO_EMULATION_ENABLE=y to \
proceed by allowing slower software emulation.
"""
# NOT seen here: the format above, with cells that others report of RDMA and GPUs.
RDMA = """\
[1.0] [host:16611:0]   +---------+--------------------+--------------------------------------------+
[1.0] [host:16611:0]   | decode worker 3 inter-node cfg#2                                          |
[1.0] [host:16611:0]   | remote memory read by ucp_get*(multi) into cuda/GPU3 from cuda/dev[0]     |
[1.0] [host:16611:0]   +---------+--------------------+--------------------------------------------+
[1.0] [host:16611:0]   |  Range  |    Description     |                   Config                   |
[1.0] [host:16611:0]   +---------+--------------------+--------------------------------------------+
[1.0] [host:16611:0]   |       0 | copy-out           | rc_mlx5/mlx5_0:1/path0                     |
[1.0] [host:16611:0]   |   1..2K | software emulation | rc_mlx5/mlx5_0:1/path0                     |
[1.0] [host:16611:0]   | 2049..inf | zero-copy        | 50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1 |
[1.0] [host:16611:0]   +---------+--------------------+--------------------------------------------+
"""
# NOT seen here: the title beside the operation as in older UCX, with cells that others report.
NVLINK = """\
[1.0] [host:16611:0]   +--------------------------------+--------------------------------------------------------+
[1.0] [host:16611:0]   | decode intra-node cfg#3 | remote memory read by ucp_get* into cuda/GPU0 from cuda/dev[0] |
[1.0] [host:16611:0]   +--------------------------------+-------------------------------------------+------------+
[1.0] [host:16611:0]   |                         0..inf | (?) zero-copy                     | cuda_ipc/cuda      |
[1.0] [host:16611:0]   +--------------------------------+-------------------------------------------+------------+
[1.0] [host:16611:0]   | decode intra-node cfg#3        | remote memory write by ucp_put* from host memory to cuda |
[1.0] [host:16611:0]   +--------------------------------+-------------------------------------------+------------+
[1.0] [host:16611:0]   |                         0..inf | zero-copy                      | tcp/eth0              |
[1.0] [host:16611:0]   +--------------------------------+-------------------------------------------+------------+
"""
PATHS = RDMA.replace(
    "50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1", "rc_mlx5/ib3:1 50% on path0 and 50% on path1"
)
EMULATED_RDMA = RDMA.replace("zero-copy        ", "software emulation")
