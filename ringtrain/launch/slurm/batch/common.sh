set -o pipefail

say() { printf '%(%F %T)T job %s: %s\n' -1 "$SLURM_JOB_ID" "$*"; }
stop() { say "$*"; exit 2; }
[ -n "${SLURM_JOB_ID:-}" ] || { echo "this is a job for Slurm: submit it, as sbatch $0" >&2; exit 2; }

# ── ringtrain and its launcher ──────────────────────────────────────────────────────────────────────────────────────
if [ -n "$modules" ]; then
    # shellcheck disable=SC1091  # the site's
    command -v module >/dev/null || . /etc/profile
    # shellcheck disable=SC2086  # several, separated by blanks
    module load $modules || stop "module load $modules failed: 'module avail' lists what this site has"
fi
set -u  # not before: profiles and modules of sites fail under it
read -ra container_flags <<<"$container_flags"
read -ra launcher_flags <<<"$launcher_flags"

if [ -n "$container" ]; then
    # Hybrid MPI: the launcher outside starts processes with the image's MPI library, which must be of the same kind
    # (Open MPI 5 for an mpirun of Open MPI 5; for srun one with the PMI that srun speaks). --nv brings the GPU driver
    # into the image.
    apptainer="$(command -v apptainer || command -v singularity)" || stop "no apptainer here, which runs $container"
    [ -e "$container" ] || stop "there is no image $container (from $PWD)"
    [ -z "${SLURM_GPUS_ON_NODE:-}${SLURM_JOB_GPUS:-}" ] || container_flags+=(--nv)
else
    for beside in .venv venv; do
        [ -n "$venv" ] || command -v ringtrain >/dev/null || [ ! -x "$beside/bin/ringtrain" ] || venv="$beside"
    done
    [ -z "$venv" ] || PATH="$(cd "$venv/bin" && pwd):$PATH" || stop "there is no virtual environment $venv (from $PWD)"
fi

# find_program NAME: set `program` to what starts it, from PATH or in the container.
find_program() {
    if [ -n "$container" ]; then
        program=("$apptainer" exec "${container_flags[@]}" "$container" "$1")
    else
        program=("$(command -v "$1")") || stop "no $1 found: set venv, modules or container in this script"
    fi
}

if [ "$launcher" = auto ]; then
    launcher=srun
    ! command -v mpirun >/dev/null || launcher=mpirun
fi
if [ "$launcher" = mpirun ]; then
    case "$(mpirun --version 2>&1)" in *"Open MPI"* | *OpenRTE* | *PRRTE*) launcher=openmpi ;; *) launcher=hydra ;; esac
fi
[[ $launcher =~ ^(openmpi|hydra|srun)$ ]] || stop "launcher is '$launcher'; it wants auto, mpirun or srun"

# ── nodes and ranks ─────────────────────────────────────────────────────────────────────────────────────────────────
# unfold: print the counts of Slurm's 2(x3),1: 2 2 2 1.
unfold() {
    local part
    for part in ${1//,/ }; do
        part="${part//[(x)]/ }"
        # shellcheck disable=SC2086  # a number and its count
        set -- $part
        printf "$1\n%.0s" $(seq "${2:-1}")
    done
}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
crowded=no  # more ranks than the tasks that Slurm counts
if [ -n "$ranks_per_node" ]; then
    mapfile -t ranks < <(unfold "$ranks_per_node(x${#nodes[@]})")
elif [ -n "${SLURM_NTASKS:-}" ]; then
    mapfile -t ranks < <(unfold "$SLURM_TASKS_PER_NODE")
else
    mapfile -t ranks < <(unfold "${SLURM_GPUS_ON_NODE:-1}(x${#nodes[@]})")
fi
[ -z "$ranks_per_node" ] && [ -n "${SLURM_NTASKS:-}" ] || crowded=yes

# A rank computes with one thread for each of its cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"

# tell_job_end: export the end of the job: in a container ringtrain has no squeue, and the limit may have changed.
tell_job_end() {
    local end
    end="$(SLURM_TIME_FORMAT=standard squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null)"
    [ -z "$end" ] || end="$(date -d "$end" +%s 2>/dev/null)" || end=""
    [ -z "$end" ] || export RINGTRAIN_JOB_END="$end"
}

bad_exit=(--kill-on-bad-exit=1)  # srun's
# mpi_command: set `mpi` to the launcher and its flags.
mpi_command() {
    local i total=0 hosts=() cores="${SLURM_CPUS_PER_TASK:-}"
    for i in "${!nodes[@]}"; do
        hosts+=("${nodes[i]}:${ranks[i]}")
        total=$((total + ranks[i]))
    done
    case "$launcher" in
        openmpi)
            mpi=(mpirun --host "$(IFS=,; echo "${hosts[*]}")" -np "$total")
            if [ -n "$mapping" ]; then
                read -ra mapped <<<"$mapping"
                mpi+=("${mapped[@]}")
            elif [ "$crowded" = yes ]; then
                mpi+=(--map-by :OVERSUBSCRIBE --bind-to none)
            elif [ "${cores:-1}" -gt 1 ]; then
                mpi+=(--map-by "slot:PE=$cores")
            fi
            ;;
        hydra)
            printf '%s\n' "${hosts[@]}" >"$folder/hosts.$SLURM_JOB_ID"
            mpi=(mpirun -machinefile "$folder/hosts.$SLURM_JOB_ID" -n "$total")
            ;;
        srun)
            mpi=(srun "--mpi=$srun_mpi" "${bad_exit[@]}" "--nodes=${#nodes[@]}" "--ntasks=$total")
            mpi+=("--nodelist=$(IFS=,; echo "${nodes[*]}")")
            [ "$(printf '%s\n' "${ranks[@]}" | sort -u | wc -l)" -gt 1 ] || mpi+=("--ntasks-per-node=${ranks[0]}")
            [ -z "$cores" ] || mpi+=("--cpus-per-task=$cores")  # needed by srun of Slurm 22.05 and later
            [ "$crowded" = no ] || mpi+=(--overcommit)
            ;;
    esac
    mpi+=("${launcher_flags[@]}")
}
