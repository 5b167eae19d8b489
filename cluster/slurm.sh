#!/usr/bin/env bash
# A sweep under Slurm: Ray on all nodes of the job, the sweep on its first one. From the checkout's top folder, which all
# nodes must see:  sbatch cluster/slurm.sh search_spaces/fedavg.yaml [key=value ...]
# Cut short by the time limit, it goes on with:  sbatch cluster/slurm.sh --resume fedavg
#SBATCH --job-name=flray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --output=flray-%j.log
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: sbatch $0 FILE.yaml [key=value ...] | --resume NAME" >&2; exit 2; }
cd "${SLURM_SUBMIT_DIR:?run me with sbatch}"
source scripts/setup.sh
source cluster/node/environment
export FLRAY_NODE="$FLRAY_ROOT"

# Nodes may be shared: a token and ports of this job's own.
RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_TOKEN
port=$((20000 + SLURM_JOB_ID % 10000))
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head="${nodes[0]}"
head_ip="$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')"

# --block keeps each Ray in its job step, so that Slurm ends it with the job.
srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --block --node-ip-address="$head_ip" --port="$port" --include-dashboard=false \
  --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" &
for attempt in $(seq 60); do
  ray status --address="$head_ip:$port" >/dev/null 2>&1 && break
  [ "$attempt" -lt 60 ] || { echo "flray: no Ray on $head after two minutes" >&2; exit 1; }
  sleep 2
done
if [ "${#nodes[@]}" -gt 1 ]; then
  srun --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --exclude="$head" \
    ray start --block --address="$head_ip:$port" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" &
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

if [ "$1" = --resume ]; then
  flray resume "$2" --address "$head_ip:$port"
else
  flray tune "$@" --address "$head_ip:$port"
fi
