"""NCCL logs in the formats of several versions, written for the tests, with at most one fault each."""

from __future__ import annotations

V24_SOCKET_AND_SHM = """\
node1:30:97 [0] NCCL INFO Bootstrap : Using [0]eth0:10.0.0.1<0> [1]net1:10.56.0.1<0>
node1:30:97 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so).

node1:30:97 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]
node1:30:97 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]net1:10.56.0.1<0>
NCCL version 2.4.8+cuda10.1
node1:31:98 [1] NCCL INFO Bootstrap : Using [0]eth0:10.0.0.1<0> [1]net1:10.56.0.1<0>
node2:40:99 [0] NCCL INFO Bootstrap : Using [0]eth0:10.0.0.2<0> [1]net1:10.56.0.2<0>
node1:30:97 [0] NCCL INFO Channel 00 :    0   1   2
node1:30:97 [0] NCCL INFO Ring 00 : 2 -> 0 [receive] via NET/Socket/0
node1:30:97 [0] NCCL INFO Ring 00 : 0[0] -> 1[1] via direct shared memory
node1:31:98 [1] NCCL INFO Ring 00 : 1 -> 2 [send] via NET/Socket/0
node2:40:99 [0] NCCL INFO Ring 00 : 1 -> 2 [receive] via NET/Socket/0
node2:40:99 [0] NCCL INFO Ring 00 : 2 -> 0 [send] via NET/Socket/0
node1:30:97 [0] NCCL INFO comm 0x7f1c00 rank 0 nranks 3 cudaDev 0 nvmlDev 0 - Init COMPLETE
node1:31:98 [1] NCCL INFO comm 0x7f2c00 rank 1 nranks 3 cudaDev 1 nvmlDev 1 - Init COMPLETE
node2:40:99 [0] NCCL INFO comm 0x7f3c00 rank 2 nranks 3 cudaDev 0 nvmlDev 0 - Init COMPLETE
node1:30:97 [0] NCCL INFO Launch mode Parallel
"""

V210_IB = """\
[1,0]<stdout>:dgx1:100:200 [0] NCCL INFO Bootstrap : Using ib0:10.1.0.1<0>
[1,0]<stdout>:dgx1:100:200 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB ib0:10.1.0.1<0>
[1,0]<stdout>:dgx1:100:200 [0] NCCL INFO Using network IB
[1,0]<stdout>:NCCL version 2.10.3+cuda11.3
[1,1]<stdout>:dgx1:101:201 [1] NCCL INFO Using network IB
[1,2]<stdout>:dgx2:300:400 [0] NCCL INFO Using network IB
[1,3]<stdout>:dgx2:301:401 [1] NCCL INFO Using network IB
[1,0]<stdout>:dgx1:100:200 [0] NCCL INFO Channel 00 : 3[bd000] -> 0[7000] [receive] via NET/IB/0/GDRDMA
[1,0]<stdout>:dgx1:100:200 [0] NCCL INFO Channel 00 : 0[7000] -> 1[f000] via P2P/IPC/read
[1,1]<stdout>:dgx1:101:201 [1] NCCL INFO Channel 00 : 1[f000] -> 2[b7000] [send] via NET/IB/0/GDRDMA
[1,2]<stdout>:dgx2:300:400 [0] NCCL INFO Channel 00 : 1[f000] -> 2[b7000] [receive] via NET/IB/0/GDRDMA
[1,2]<stdout>:dgx2:300:400 [0] NCCL INFO Channel 00 : 2[b7000] -> 3[bd000] via P2P/IPC/read
[1,3]<stdout>:dgx2:301:401 [1] NCCL INFO Channel 00 : 3[bd000] -> 0[7000] [send] via NET/IB/0/GDRDMA
[1,0]<stdout>:dgx1:100:200 [0] NCCL INFO comm 0x1 rank 0 nranks 4 cudaDev 0 busId 7000 - Init COMPLETE
[1,1]<stdout>:dgx1:101:201 [1] NCCL INFO comm 0x2 rank 1 nranks 4 cudaDev 1 busId f000 - Init COMPLETE
[1,2]<stdout>:dgx2:300:400 [0] NCCL INFO comm 0x3 rank 2 nranks 4 cudaDev 0 busId b7000 - Init COMPLETE
[1,3]<stdout>:dgx2:301:401 [1] NCCL INFO comm 0x4 rank 3 nranks 4 cudaDev 1 busId bd000 - Init COMPLETE
"""

V218_ROCE_WITHOUT_GDR = """\
worker-0: a:1:5 [0] NCCL INFO NCCL version 2.18.6+cuda12.1
worker-0: a:1:5 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0
worker-0: a:1:5 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
worker-0: a:1:5 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
worker-0: a:1:5 [0] NCCL INFO Using network IB
worker-0: a:1:5 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 7000 commId 0xabc - Init START
worker-1: b:1:5 [0] NCCL INFO comm 0x5 rank 1 nranks 2 cudaDev 0 busId 7000 commId 0xabc - Init START
worker-0: a:1:5 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
worker-0: a:1:5 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
worker-1: b:1:5 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0
worker-1: b:1:5 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0
worker-0: a:1:5 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 7000 commId 0xabc - Init COMPLETE
worker-1: b:1:5 [0] NCCL INFO comm 0x5 rank 1 nranks 2 cudaDev 0 busId 7000 commId 0xabc - Init COMPLETE
"""

V221_EFA = """\
ip-10-0-0-1:14:20 [0] NCCL INFO Bootstrap : Using ens5:10.0.0.1<0>
ip-10-0-0-1:14:20 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.9.2-aws
ip-10-0-0-1:14:20 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
ip-10-0-0-1:14:20 [0] NCCL INFO Using network AWS Libfabric
NCCL version 2.21.5+cuda12.4
ip-10-0-0-1:14:20 [0] NCCL INFO comm 0x9 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
ip-10-0-0-1:14:20 [0] NCCL INFO NVLS multicast support is available on dev 0
ip-10-0-0-1:14:20 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0(1)/GDRDMA/Shared
ip-10-0-0-1:14:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
ip-10-0-0-1:14:20 [0] NCCL INFO Connected NVLS tree
ip-10-0-0-1:14:20 [0] NCCL INFO ncclCommInitRank comm 0x9 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 101c0 \
commId 0xfe - Init COMPLETE
"""

V227_SOCKETS_THOUGH_IB = """\
[2025-11-01 10:00:00] a:1:1 [0] NCCL INFO NCCL version 2.27.7+cuda13.0
[2025-11-01 10:00:00] a:1:1 [0] NCCL INFO NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 ar=0
[2025-11-01 10:00:00] a:1:1 [0] NCCL INFO NCCL_NET set by environment to Socket.
[2025-11-01 10:00:00] a:1:1 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0> [1]eth0:fe80::1%eth0<0>
[2025-11-01 10:00:00] a:1:1 [0] NCCL INFO Using network Socket
[2025-11-01 10:00:00] a:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
[2025-11-01 10:00:00] b:1:1 [0] NCCL INFO comm 0x1 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
a:1:1 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 cudaDev 0 commId 0x7 - Init COMPLETE
[2025-11-01 10:00:09] b:1:1 [0] socket.cc:540 (socketPoll) NCCL WARN socketPollConnect: connect to \
10.0.0.1<41234> returned Connection refused
"""
