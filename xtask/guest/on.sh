#!/bin/sh
# on NODE COMMAND [ARGUMENT...]: runs a command in a node of the guest.
node=$1
if [ $# -lt 2 ] || [ ! -e "/run/gid-index-$node" ]; then
  echo "on NODE COMMAND: NODE is a number from 1 to $RDMA_NODES" >&2
  exit 125
fi
shift
read -r RDMA_GID_INDEX < "/run/gid-index-$node"
export RDMA_GID_INDEX RDMA_NODE="$node" RDMA_DEVICE="$RDMA_KIND$node" RDMA_ADDRESS="10.77.0.$node"
exec ip netns exec "node$node" "$@"
