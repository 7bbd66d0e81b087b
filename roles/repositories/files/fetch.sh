# fetch.sh SECONDS COMMAND…: run an apt-get that only fetches, which may be ended at any time, for so long at most.
# apt itself gives up on a mirror that is silent, not on one that drips.
set -u
seconds=$1
shift
timeout "$seconds" "$@" </dev/null
status=$?
if [ "$status" = 124 ]; then echo "E: fetching took longer than $seconds s" >&2; fi
exit "$status"
