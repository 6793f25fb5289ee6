#!/bin/sh
# Runs one rank of an MPI program on addresses of its own: mpirun … rank.sh PROGRAM ARGS…
# Rank n of a host takes address n, counted from 0, of each interface in RAIL_DEVICES ("eth0", or
# "eth0 eth1" for two rails).
set -eu
rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${SLURM_LOCALID:?mpirun gives the number of the rank on its host}}}
rails=
for device in ${RAIL_DEVICES:?the interfaces of the rails, such as \"eth0 eth1\"}; do
    address=$(ip -4 -oneline address show dev "$device" scope global | awk '{ sub("/.*", "", $4); print $4 }' | sed -n "$((rank + 1))p")
    rails="${rails:+$rails,}${address:?$device has no address for rank $rank of this host; add one: ip address add}"
done
exec mitra run --rails "$rails" -- "$@"
