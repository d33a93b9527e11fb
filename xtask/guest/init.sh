# What the guest does in a run: devices, the command, its result. Run by first.sh.
#
# In /share: `settings` (KIND NODES PMEM TIMEOUT_S), `command` (a script), `links` (paths of
# what was taken along); written here: `stdout`, `stderr`, `out` and `result`, a line per event.
MTU=4500   # the largest of RoCE is 4096 and its headers
. /share/settings

result() { echo "$*" >> /share/result; }
fail() { result "failed $*"; poweroff -f; }
load() {
  [ -e /modules/$1 ] || return 0
  while read -r module; do
    [ -d /sys/module/$module ] || insmod /modules/$module.ko || fail "module $module"
  done < /modules/$1
}
# Waits until a command succeeds, for at most half a minute: the machine may be busy with other things.
await() {
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || return 1
    sleep 0.1
  done
}
# The index of the RoCE version 2 address that stands for an IPv4 address; siw has but one.
find_gid() {
  [ $KIND = rxe ] || { echo 0 > /run/gid-index-$1; return 0; }
  for index in 0 1 2 3 4 5 6 7; do
    read -r gid < /sys/class/infiniband/$KIND$1/ports/1/gids/$index || continue
    case $gid in 0000:0000:0000:0000:0000:ffff:*) echo $index > /run/gid-index-$1; return 0 ;; esac
  done 2>/dev/null
  return 1
}
device() { # NUMBER INTERFACE [COMMAND-PREFIX...]
  number=$1 interface=$2
  shift 2
  "$@" rdma link add $KIND$number type $KIND netdev $interface || fail "device $KIND$number"
  await find_gid $number || fail "no address for $KIND$number"
}
single_device() {
  # The driver makes dummy0 by itself when it is a module.
  [ -e /sys/class/net/dummy0 ] || ip link add dummy0 type dummy || fail "dummy0"
  ip addr add 10.77.0.1/24 dev dummy0
  ip link set dummy0 mtu $MTU up
  device 0 dummy0
}
nodes() {
  load nodes
  { echo "link add bridge0 type bridge"
    echo "link set bridge0 mtu $MTU up"
    echo "addr add 10.77.0.254/24 dev bridge0"
    for node in $(seq $NODES); do
      echo "netns add node$node"
      echo "link add node$node mtu $MTU type veth peer name eth0 mtu $MTU netns node$node"
      echo "link set node$node master bridge0 up"
    done; } > /run/batch
  ip -batch /run/batch || fail "bridge"
  for node in $(seq $NODES); do
    { echo "link set lo up"
      echo "addr add 10.77.0.$node/24 dev eth0"
      echo "link set eth0 up"; } > /run/batch
    ip -n node$node -batch /run/batch || fail "node$node"
    device $node eth0 ip netns exec node$node
  done
}
pmem() {
  load pmem
  if [ $PMEM = format ]; then
    # Writes into the NVDIMM itself that it is one piece of memory for programs to map.
    ndctl create-namespace -f -e namespace0.0 -m devdax > /tmp/ndctl 2>&1 || fail "ndctl: $(cat /tmp/ndctl)"
  fi
  await test -e /dev/dax0.0 || fail "no /dev/dax0.0"
  export RDMA_PMEM=/dev/dax0.0
}

load rdma
ulimit -l unlimited
ulimit -c 0
ip link set lo up
if [ $NODES -gt 0 ]; then nodes; first=1; else single_device; first=0; fi
read -r RDMA_GID_INDEX < /run/gid-index-$first
export RDMA_GID_INDEX RDMA_KIND=$KIND RDMA_NODES=$NODES RDMA_DEVICE=$KIND$first RDMA_ADDRESS=10.77.0.1
[ $PMEM = none ] || pmem
ln -s /share/on.sh /usr/bin/on
while read -r path; do
  mkdir -p "${path%/*}"
  [ -e "$path" ] || ln -s "/share/files$path" "$path"
done < /share/links
[ ! -d /share/libraries ] || export LD_LIBRARY_PATH=/share/libraries

# Through pipes, not straight into the shared files: a program may open /dev/stderr again, which would
# begin such a file again.
mkfifo /run/1 /run/2
cat /run/1 > /share/stdout & copier_1=$!
cat /run/2 > /share/stderr & copier_2=$!
read -r begun _ < /proc/uptime
result started
timeout --kill-after=5 $TIMEOUT_S sh /share/command < /dev/null > /run/1 2> /run/2
code=$?
read -r ended _ < /proc/uptime
if [ $code = 124 ] || [ $code = 137 ]; then
  [ $((${ended%.*} - ${begun%.*})) -lt $TIMEOUT_S ] || result timeout
fi
# Processes that the command has left may hold the pipes.
done_copying() { ! kill -0 $copier_1 2>/dev/null && ! kill -0 $copier_2 2>/dev/null; }
tries=0
until done_copying || [ $tries -ge 20 ]; do tries=$((tries + 1)); sleep 0.05; done
[ -z "$(ls -A /out)" ] || cp -r /out /share/out || result "note the files in /out could not all be copied"
sync
result code $code
poweroff -f
