#!/usr/bin/env bash
# A sweep under Slurm: Ray on all nodes of the job, the sweep on its first one. From the checkout's top folder, which all
# nodes must see:  sbatch cluster/slurm.sh search_spaces/fedavg.yaml [key=value ...]
# Before the time limit it stops with care, queues itself again and goes on. By hand:  sbatch cluster/slurm.sh --resume fedavg
#SBATCH --job-name=flray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=flray-%j.log
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: sbatch $0 FILE.yaml [key=value ...] | --resume NAME" >&2; exit 2; }
cd "${SLURM_SUBMIT_DIR:?run me with sbatch}"
source scripts/setup.sh
source cluster/node/environment
export FLRAY_NODE="$FLRAY_ROOT"

# Nodes may be shared: a token, ports and a folder of this job's own, and no more memory than the job has.
RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_TOKEN
port=$((20000 + SLURM_JOB_ID % 5000))
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}"
everywhere() { srun --nodes=${#nodes[@]} --ntasks=${#nodes[@]} "$@"; }
export RAY_TMPDIR="/tmp/flray-$SLURM_JOB_ID"   # /tmp/ray belongs to the first user of the node who made it
everywhere bash -c 'rm -rf "$RAY_TMPDIR" && mkdir -m 700 "$RAY_TMPDIR"'
memory=$((${SLURM_MEM_PER_NODE:-$((${SLURM_MEM_PER_CPU:-0} * SLURM_CPUS_PER_TASK))}))   # MiB; 0: the whole node
limits=()
if [ "$memory" -gt 0 ]; then
  limits=(--memory=$((memory * 7 / 10 << 20)) --object-store-memory=$((memory * 3 / 10 << 20)))
fi
head_ip="$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')"

# --block keeps each Ray in its job step, so that Slurm ends it with the job.
start=(bash -c 'exec ray start --block --num-gpus="${SLURM_GPUS_ON_NODE:-0}" "$@"' - --num-cpus="$SLURM_CPUS_PER_TASK" "${limits[@]}"
  --dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0)   # any that are free: Ray's own are the same in every job
srun --nodes=1 --ntasks=1 --nodelist="$head" \
  "${start[@]}" --head --node-ip-address="$head_ip" --port="$port" --ray-client-server-port=$((port + 5000)) \
  --include-dashboard=false &
steps=($!)
finish() {
  kill "${steps[@]}" 2>/dev/null || true
  wait "${steps[@]}" || true
  everywhere rm -rf "$RAY_TMPDIR" || true
}
trap finish EXIT
for attempt in $(seq 60); do
  ray status --address="$head_ip:$port" >/dev/null 2>&1 && break
  [ "$attempt" -lt 60 ] || { echo "flray: no Ray on $head after two minutes" >&2; exit 1; }
  sleep 2
done
if [ "${#nodes[@]}" -gt 1 ]; then
  srun --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --exclude="$head" \
    "${start[@]}" --address="$head_ip:$port" &
  steps+=($!)
  python - "$head_ip:$port" "${#nodes[@]}" <<'PYTHON'
import sys, time, ray
address, wanted = sys.argv[1], int(sys.argv[2])
ray.init(address=address, logging_level="ERROR")
end = time.monotonic() + 120
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > end:
        sys.exit(f"flray: {there} of {wanted} nodes have joined Ray within two minutes")
    time.sleep(1)
PYTHON
fi

# A job that was queued again goes on with the newest sweep of its experiment's name, if it began one.
work=(flray tune "$@")
if [ "$1" = --resume ]; then
  work=(flray resume "$2")
else
  read -r name output < <(python - "$@" <<'PYTHON'
import sys
from flray.config.loader import load
experiment = load(sys.argv[1], sys.argv[2:]).experiment
print(experiment.name, experiment.output)
PYTHON
)
  newest() { find "$output/$name" -mindepth 1 -maxdepth 1 -name '[0-9]*' 2>/dev/null | sort -V | tail -n 1; }
  before="flray-$SLURM_JOB_ID.before"
  if [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]; then
    newest > "$before"
  elif [[ "$output" == *://* ]] || [ "$(newest)" != "$(cat "$before" 2>/dev/null)" ]; then
    work=(flray resume "$name" --output "$output")
  fi
fi
"${work[@]}" --address "$head_ip:$port" &
pid=$!
again=false
trap 'again=true; kill -TERM $pid' USR1  # Slurm sends it three minutes before the time limit
code=0
wait "$pid" || code=$?
if $again; then  # that was the signal
  code=0
  wait "$pid" || code=$?
fi
if $again && [ "$code" -eq 143 ]; then
  finish
  scontrol requeue "$SLURM_JOB_ID"
else
  rm -f "flray-$SLURM_JOB_ID.before"
fi
exit "$code"
