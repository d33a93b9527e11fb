# perftest and `farside bench fabric` by turns, between two nodes of one guest. bench.rs reads what this
# prints: a line `PROGRAM TEST BYTES` before each line of figures.
#   sh -c "$(cat bench.sh)" bench FARSIDE ROUNDS
farside=$1 rounds=$2

# One end on each processor, and rxe's workers beside the server. Left alone they stay where they ran
# last, since this kernel knows of no cache that processors share and so looks for no idle one: a READ
# took 50 us where they had a processor of their own and 100 us where they took the poller's, by chance
# and for a whole run.
server_on="taskset 1" client_on="taskset 2"
echo 1 > /sys/devices/virtual/workqueue/cpumask

# perftest divides by the frequency that it finds here, or by what it measures where that differs.
printf 'processor : 0\ncpu MHz : 1000.000\n' > /run/cpuinfo
mount --bind /run/cpuinfo /proc/cpuinfo

fail() { echo "$*" >&2; [ ! -e /run/errors ] || cat /run/errors >&2; exit 1; }
# The line of figures in what a program has printed.
figures() {
  echo "$1 $2 $3"
  grep -E '^ *[0-9]+ +[0-9]+ ' /run/result || fail "$1 $2 $3: no figures"
}
perftest() { # TEST BYTES ITERATIONS
  size="-s $2"
  [ $1 != atomic_lat ] || size=
  on 2 $server_on sh -c 'exec "$@" -d $RDMA_DEVICE -x $RDMA_GID_INDEX' - ib_$1 -F $size -n $3 > /run/server 2>&1 &
  server=$!
  tries=0
  # The server may not listen yet.
  until on 1 $client_on sh -c 'exec "$@" -d $RDMA_DEVICE -x $RDMA_GID_INDEX 10.77.0.2' - \
      ib_$1 -F $size -n $3 > /run/result 2> /run/errors; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { cat /run/server >&2; fail "ib_$1 fails"; }
    sleep 0.05
  done
  wait $server
  # It could not tell how fast its clock goes.
  if grep -q inf /run/result; then
    runs=$((runs + 1))
    [ $runs -lt 20 ] || fail "ib_$1 has no clock"
    perftest $1 $2 $3
    return
  fi
  figures perftest $1 $2
}
own() { # TEST BYTES ITERATIONS
  case $1 in *_bw) measure=bandwidth ;; *) measure=latency ;; esac
  tries=0
  # A guest whose processors the machine takes away for as long as a lease loses its peer.
  until on 1 $client_on $farside bench fabric --fabric verbs 10.77.0.2:7000 --test ${1%_*} --measure $measure \
      --bytes $2 -n $3 > /run/result 2> /run/errors; do
    tries=$((tries + 1))
    [ $tries -lt 5 ] || fail "farside $1 $2"
  done
  figures farside $1 $2
}

# One behind the other, so that what disturbs the machine disturbs both; either is the first in turn.
both() { # TEST BYTES ITERATIONS
  runs=0
  if [ $((round % 2)) = 1 ]; then
    perftest "$@"
    own "$@"
  else
    own "$@"
    perftest "$@"
  fi
}

on 2 $server_on $farside bench fabric --fabric verbs --listen 10.77.0.2:7000 > /run/listening 2> /run/errors &
tries=0
until grep -qs listening /run/listening; do
  tries=$((tries + 1))
  [ $tries -lt 300 ] || fail "farside does not listen"
  sleep 0.1
done
round=0
while [ $round -lt $rounds ]; do
  round=$((round + 1))
  echo "round $round of $rounds" >&2
  for size in 2:1000 64:1000 1024:1000 4096:1000 16384:500 65536:300 1048576:20; do
    bytes=${size%:*} count=${size#*:}
    for test in write_lat read_lat send_lat; do
      both $test $bytes $count
    done
    both write_bw $bytes $((count * 4))
  done
  both atomic_lat 8 1000
done
