#!/bin/bash
# A Ray cluster in a SLURM job, and a training run on it: sbatch slurm.sh RECIPE
# The environment (sleuth[ray]) and the working directory must be on a file system that all nodes share.
#SBATCH --job-name=sleuth
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600
set -euo pipefail
recipe=${1:?usage: sbatch slurm.sh RECIPE}
source "${VENV:-.venv}/bin/activate"

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname --ip-address | awk '{print $1}')
port=6379

srun --overlap --nodes=1 --ntasks=1 -w "${nodes[0]}" \
    ray start --head --node-ip-address="$head" --port=$port --num-gpus="$SLURM_GPUS_PER_NODE" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 20
for node in "${nodes[@]:1}"; do
    srun --overlap --nodes=1 --ntasks=1 -w "$node" \
        ray start --address="$head:$port" --num-gpus="$SLURM_GPUS_PER_NODE" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
done

# Ten minutes before the time limit SLURM signals this script, and the run saves a checkpoint.
# Submit again with RUN=runs/... to resume it.
where=("$recipe")
[[ -n "${RUN:-}" ]] && where=(--resume "$RUN")
sleuth train "${where[@]}" --ray "$head:$port" &
training=$!
trap 'kill -TERM $training' TERM
wait $training || wait $training
