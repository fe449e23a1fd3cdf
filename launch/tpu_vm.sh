#!/usr/bin/env bash
# A run on a Cloud TPU VM, from creation to deletion, on one worker or many.
#
#   bash launch/tpu_vm.sh run    --name=NAME --zone=ZONE --type=v5e-16 [--spot] [--queued] -- python -m bert_jax.launch.pretrain ...
#   bash launch/tpu_vm.sh create | install | start | logs | status | stop | delete  --name=NAME --zone=ZONE ...
#
# `run` is create, install, start and logs, one after the other; each can be had alone.
#   create   makes the VM (--type; --spot for the cheap kind that can be taken away; --queued waits for a free one,
#            --valid_for=6h for so long at most) with the software version of that TPU generation
#   install  copies this checkout (its last commit) to all workers and installs it there, Python 3.13 first where the image is older
#   start    starts the command after `--` on all workers, supervised (bert_jax.launch.supervise), with --distributed where workers are many
#   logs     shows worker 0's log as it grows;   status   the state of the VM, and of the run on each worker
#   keep     like run, without the log: makes the VM again whenever it was taken away (--spot), until the run is done
#   stop     asks the run to save and stop;      delete   gives the VM back: until then it is paid for
# Also: --project=P, --reserved, --dry_run (prints the gcloud commands and does nothing).
# A --workdir and --data of a run on many workers must be gs:// paths. TPU7x (Ironwood) is not served by the Cloud TPU API: use GKE.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "tpu_vm.sh: error: $*" >&2; exit 2; }

# The action first, then flags up to --; what follows is the run's command, kept as it is quoted.
action=${1:-help}
[ "$#" -eq 0 ] || shift
case "$action" in
  run | keep | create | install | start | logs | status | stop | delete) ;;
  help | --help | -h) sed -n '2,/^set -e/{/^set -e/!s/^# \{0,1\}//p;}' "$0"; exit 0 ;;
  *) fail "unknown action '$action': one of run, keep, create, install, start, logs, status, stop, delete" ;;
esac

name='' zone='' type='' project='' valid_for='' spot='' queued='' reserved='' dry_run=''
while [ "$#" -gt 0 ]; do
  case "$1" in
    --name=?*) name=${1#*=} ;;
    --zone=?*) zone=${1#*=} ;;
    --type=?*) type=${1#*=} ;;
    --project=?*) project=${1#*=} ;;
    --valid_for=?*) valid_for=${1#*=} queued=1 ;;
    --spot) spot=1 ;;
    --queued) queued=1 ;;
    --reserved) reserved=1 ;;
    --dry_run) dry_run=1 ;;
    --) shift; break ;;
    *) fail "unknown argument '$1' (a flag is written --name=value; the command stands after --)" ;;
  esac
  shift
done
command=("$@")
[ -n "$name" ] || fail '--name is required: what the VM is called'
[ -n "$zone" ] || fail '--zone is required, as in --zone=us-west4-a'
[ -z "$spot" ] || [ -z "$reserved" ] || fail '--spot and --reserved exclude each other'
where=(--zone="$zone")
[ -z "$project" ] || where+=(--project="$project")

# The generation decides the name that the API has for the type, and the image. The figure after the dash counts cores
# (v4, v5p; 8 to a host) or chips (v5e, v6e; at most 8 on a single host): above 8 there are several hosts.
set_image() {
  case "$type" in
    v4-*) image=tpu-ubuntu2204-base accelerator=$type ;;
    v5e-* | v5litepod-*) image=v2-alpha-tpuv5-lite accelerator=v5litepod-${type##*-} ;;
    v5p-*) image=v2-alpha-tpuv5 accelerator=$type ;;
    v6e-*) image=v2-alpha-tpuv6e accelerator=$type ;;
    v7* | tpu7*) fail "--type=$type: TPU7x is not served by the Cloud TPU API; create it in a GKE node pool and run bert_jax.launch.supervise there" ;;
    v2-* | v3-*) fail "--type=$type: this generation is too small and too old for today's jax; use v4, v5e, v5p or v6e" ;;
    '') fail '--type is required, as in --type=v5e-8 (v4-N, v5e-N, v5p-N or v6e-N)' ;;
    *) fail "--type=$type: unknown; use v4-N, v5e-N, v5p-N or v6e-N" ;;
  esac
  case "${type##*-}" in '' | *[!0-9]*) fail "--type=$type: a size must follow, as in ${type%%-*}-8" ;; esac
  [ "${type##*-}" -gt 8 ] && pod=1 || pod=''
}

call() { # runs gcloud, or prints the command as it could be typed
  if [ -n "$dry_run" ]; then
    { printf 'gcloud'; printf ' %q' "$@"; printf '\n'; }
  else
    gcloud "$@"
  fi
}

on_all() { call compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all --command="$1"; }

# Two interfaces: a queued resource waits for a free TPU, a VM is there at once or not at all.
create() {
  set_image
  if [ -n "$queued" ]; then
    local arguments=(--node-id="$name" --accelerator-type="$accelerator" --runtime-version="$image" "${where[@]}")
    [ -z "$spot" ] || arguments+=(--spot)
    [ -z "$reserved" ] || arguments+=(--reserved)
    [ -z "$valid_for" ] || arguments+=(--valid-until-duration="$valid_for")
    call compute tpus queued-resources create "$name" "${arguments[@]}"
    wait_in_queue
  else
    local arguments=(--accelerator-type="$accelerator" --version="$image" "${where[@]}")
    [ -z "$spot" ] || arguments+=(--spot)
    [ -z "$reserved" ] || arguments+=(--reserved)
    call compute tpus tpu-vm create "$name" "${arguments[@]}"
  fi
}

# Ends when the TPU is there, or when the request can no longer be fulfilled.
wait_in_queue() {
  local state
  while true; do
    if [ -n "$dry_run" ]; then
      call compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)'
      return
    fi
    state=$(gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)')
    echo "$(date +%H:%M:%S) $name: $state"
    case "$state" in
      ACTIVE) return ;;
      FAILED | SUSPENDED | SUSPENDING | DELETING)
        fail "the request ended as $state: bash launch/tpu_vm.sh delete --queued --name=$name --zone=$zone, then another zone, or later" ;;
    esac
    sleep "${TPU_VM_POLL_S:-30}"
  done
}

# The last commit and not the working tree: what runs there can be named. It is laid over the folder that is
# there, so that an environment and a run's files stay.
install_there() {
  local archive
  archive=$(mktemp -d)/bert_jax.tgz
  git archive --format=tar.gz -o "$archive" HEAD
  call compute tpus tpu-vm scp "$archive" "$name:bert_jax.tgz" "${where[@]}" --worker=all
  rm -r "$(dirname "$archive")"
  on_all 'set -e
    if ! command -v python3.13 >/dev/null && ! command -v python3.12 >/dev/null && ! command -v python3.11 >/dev/null; then
      sudo add-apt-repository -y ppa:deadsnakes/ppa && sudo apt-get -qq update && sudo apt-get -qq install -y python3.13 python3.13-venv
    fi
    rm -rf bert_jax.new && mkdir -p bert_jax bert_jax.new && tar -xzf bert_jax.tgz -C bert_jax.new
    cp -a bert_jax.new/. bert_jax && rm -r bert_jax.new && cd bert_jax && source launch/install.sh ".[tpu,gcs,tensorflow]"'
}

# setsid and nohup: the run outlives the connection. run.pid says that it goes on, run.code how it ended.
start() {
  [ "${#command[@]}" -gt 0 ] || fail 'no command: write it after --, as in: -- python -m bert_jax.launch.pretrain --config=bert_base ...'
  set_image
  local words=("${command[@]}") line
  [ -z "$pod" ] || [[ " ${words[*]} " == *' --distributed '* ]] || words+=(--distributed)
  case "${words[0]}" in python | bert-*) words[0]=.venv/bin/${words[0]} ;; esac
  line=$(printf ' %q' "${words[@]}")
  on_all "cd bert_jax && if [ -f run.pid ] && kill -0 \$(cat run.pid) 2>/dev/null; then echo 'a run is going on: stop it first' >&2; exit 2; fi
    rm -f run.code; setsid nohup bash -c '.venv/bin/python -m bert_jax.launch.supervise -- \"\$@\"; echo \$? > run.code' run$line >> run.log 2>&1 < /dev/null &
    echo \$! > run.pid"
}

logs() { call compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=0 --command='tail -n 100 -F bert_jax/run.log'; }

status() {
  call compute tpus tpu-vm describe "$name" "${where[@]}" --format='value(state,health)'
  on_all 'cd bert_jax && if [ -f run.code ]; then echo "ended with exit code $(cat run.code)"; else echo running; fi; tail -n 1 run.log'
}

# The brackets keep pkill from finding its own command line.
stop() { on_all 'cd bert_jax && pkill -TERM -f "[l]aunch.supervise"'; }

# Asks every so often: makes the VM again where it is gone, and ends with the run.
keep() {
  local state code
  while true; do
    state=$(gcloud compute tpus tpu-vm describe "$name" "${where[@]}" --format='value(state)' 2>/dev/null || echo ABSENT)
    code=''
    if [ "$state" = READY ]; then
      code=$(gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=0 --command='cat bert_jax/run.code 2>/dev/null || echo running' || echo unknown)
    fi
    echo "$(date +%H:%M:%S) $name: $state $code"
    case "$state $code" in
      'READY 0') echo "the run is done; bash launch/tpu_vm.sh delete --name=$name --zone=$zone gives the VM back"; return ;;
      'READY running' | 'READY unknown' | CREATING* | STARTING* | RESTARTING* | REPAIRING*) sleep "${TPU_VM_POLL_S:-30}" ;;
      READY*) fail "the run ended with exit code $code: bash launch/tpu_vm.sh logs --name=$name --zone=$zone" ;;
      ABSENT*) create && install_there && start ;;
      *) delete ;; # PREEMPTED, TERMINATED, STOPPED: this one does not come back
    esac
  done
}

delete() {
  if [ -n "$queued" ]; then
    call compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet
  else
    call compute tpus tpu-vm delete "$name" "${where[@]}" --quiet
  fi
}

# Only now, so that --help and mistakes in the flags need no gcloud.
[ -n "$dry_run" ] || command -v gcloud >/dev/null || fail 'gcloud is not installed: https://cloud.google.com/sdk/docs/install (--dry_run shows the commands)'
case "$action" in
  run | keep)
    [ "${#command[@]}" -gt 0 ] || fail 'no command: write it after --, as in: -- python -m bert_jax.launch.pretrain --config=bert_base ...'
    if [ "$action" = keep ] && [ -z "$dry_run" ]; then
      keep
    else
      create
      install_there
      start
      [ "$action" = keep ] || logs
    fi
    ;;
  install) install_there ;;
  *) "$action" ;;
esac
