# ── the run folder ──────────────────────────────────────────────────────────────────────────────────────────────────
# The job names it: a job keeps its number when it is queued again, and finds its folder.
folder="$runs/$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}"
own_resume=no own_folder=no data=""
for ((i = 0; i < ${#flags[@]}; i++)); do
    case "${flags[i]}" in
        --out | -o) folder="${flags[i + 1]:-}" own_folder=yes ;;
        --out=*) folder="${flags[i]#*=}" own_folder=yes ;;
        -o?*) folder="${flags[i]#-o}" own_folder=yes ;;
        --resume | --resume=*) own_resume=yes ;;
        --data) data="${flags[i + 1]:-}" ;;
        --data=*) data="${flags[i]#*=}" ;;
    esac
done
[ "$own_folder" = yes ] || flags+=(--out "$folder")
mkdir -p "$folder" || stop "the run folder $folder cannot be made"
if [ -n "$stage" ]; then
    copy="$stage/$SLURM_JOB_ID-${data##*/}"
    sbcast --force "$data" "$copy" || stop "stage: --data '$data' cannot be copied to $copy on each node"
    flags+=(--data "$copy")
fi

# newest_checkpoint: print the iteration of the newest checkpoint, or "none".
newest_checkpoint() {
    local path
    path="$(find "$folder/checkpoints" -name 'iteration-*.h5' 2>/dev/null | sort | tail -n 1)"
    path="${path##*/iteration-}"
    path="${path%.h5}"
    [ -n "$path" ] && echo $((10#$path)) || echo none
}

# train_command: set `train` to the command of each rank. A --resume among the flags counts until the run has its own
# checkpoint (the best one is written first); `--resume auto` respects one of a run file.
train_command() {
    train=("${ringtrain[@]}" train "${flags[@]}")
    [ "$own_resume" = yes ] && [ "$(newest_checkpoint)" = none ] && [ ! -e "$folder/checkpoints/best.h5" ] ||
        train+=(--resume auto)
}

# ── one start ───────────────────────────────────────────────────────────────────────────────────────────────────────
asked="" child="" again=no
# Both mean: stop. USR1 comes before the limit or a preemption (--signal); TERM comes with a preemption or scancel. The
# launcher forwards USR1 to all ranks; after TERM it would kill them.
forward() {
    asked="$1" again=yes
    say "told to stop by $1: the ranks are told"
    [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null
}
trap 'forward USR1' USR1
trap 'forward TERM' TERM

# start COMMAND...: run it to its end and set `status`. It runs in the background, so that bash runs traps meanwhile.
start() {
    "$@" &
    child=$!
    [ -z "$asked" ] || kill -USR1 "$child" 2>/dev/null  # the signal came before the ranks
    while :; do
        again=no
        wait "$child"
        status=$?
        [ "$again" = yes ] || break  # a signal ends the wait, not the child
    done
    child=""
}

# outcome: print the outcome that the run wrote, since mpirun may end with 0 after the death of a node. `running`: the
# run was killed; nothing: it had not begun.
outcome() { sed -n 's/.*"outcome": *"\([a-z]*\)".*/\1/p' "$folder/outcome.json" 2>/dev/null; }
exit_code() { sed -n 's/.*"exit_code": *\([0-9]*\).*/\1/p' "$folder/outcome.json" 2>/dev/null; }
# which_outcome: identify the outcome file; opening it makes NFS ask its server. An unchanged file is of an earlier
# start, or of another job's run in this folder, and does not count.
which_outcome() { { stat -c '%i %y' - <"$folder/outcome.json"; } 2>/dev/null; }

# ── starts in a row ─────────────────────────────────────────────────────────────────────────────────────────────────
# count_start: set `idle` to the number of starts of this job since the newest checkpoint. The run's folder keeps it for
# a job that is queued again.
count_start() {
    local job="" before="" count=0 now
    now="$(newest_checkpoint)"
    [ ! -e "$folder/slurm.starts" ] || read -r job before count <"$folder/slurm.starts"
    [ "$job $before" = "$SLURM_JOB_ID $now" ] || count=0
    idle="$count"
    printf '%s %s %s\n' "$SLURM_JOB_ID" "$now" $((count + 1)) >"$folder/slurm.starts"
}

# queue_again: print before scontrol, after which Slurm ends this script.
queue_again() {
    if [ "$asked" = TERM ]; then
        say "Slurm ends the job: it is queued again only if Slurm does that"
    elif [ "$requeue" = scontrol ]; then
        say "to be queued again"
        scontrol requeue "$SLURM_JOB_ID" || say "scontrol requeue failed: go on with sbatch and --out $folder"
    fi
    exit 75  # slurm.conf may name it in RequeueExit
}

# answering: print the numbers of the nodes that answer srun. Call it in a subshell: a signal would end a wait of this
# shell, and bash forgets how a child ended meanwhile.
answering() {
    local i
    for i in "${!nodes[@]}"; do
        { ! timeout "$probe_s" srun --overlap --mpi=none --nodes=1 --ntasks=1 --nodelist="${nodes[i]}" true &>/dev/null ||
            echo "$i"; } &
    done
    wait
}

# drop_lost_nodes: leave out the nodes that do not answer; true if there is one.
drop_lost_nodes() {
    local i answers alive=() on=() lost=()
    answers=" $(answering | tr '\n' ' ')"
    [ -z "$asked" ] || queue_again  # a signal came meanwhile
    for i in "${!nodes[@]}"; do
        if [[ $answers = *" $i "* ]]; then
            alive+=("${nodes[i]}") on+=("${ranks[i]}")
        else
            lost+=("${nodes[i]}")
        fi
    done
    [ ${#lost[@]} -gt 0 ] || return
    say "lost ${lost[*]}: ${#alive[@]} of ${#nodes[@]} nodes are left"
    nodes=("${alive[@]}") ranks=("${on[@]}")
    export SLURM_OVERLAP=1  # Slurm still counts the former ranks and their cores
}

# ── the job ─────────────────────────────────────────────────────────────────────────────────────────────────────────
say "start $((${SLURM_RESTART_COUNT:-0} + 1)) on ${nodes[*]}, run folder $folder"
while :; do
    [ -z "$asked" ] || queue_again
    count_start
    if [ "$idle" -ge "$idle_starts" ]; then
        say "no new checkpoint in $idle starts: this job gives up"
        exit 1
    fi
    tell_job_end
    mpi_command
    train_command
    [ -z "$asked" ] || queue_again
    before="$(which_outcome)"
    say "${mpi[*]} ${train[*]}"
    start "${mpi[@]}" "${train[@]}"
    how=""
    [ "$(which_outcome)" = "$before" ] || how="$(outcome)"
    say "ended as ${how:-not begun}, status $status; newest checkpoint: $(newest_checkpoint)"

    case "$how" in
        done) exit 0 ;;
        interrupted) queue_again ;;
        usage | diverged) exit "$(exit_code)" ;;
    esac
    if [ "$status" = 75 ] || [ -n "$asked" ]; then queue_again; fi
    if drop_lost_nodes; then
        [ ${#nodes[@]} -ge "$min_nodes" ] || queue_again
    elif [ "$how" != running ] && [ "$how" != stalled ]; then
        exit $((status ? status : 1))  # the run printed its error, or could not begin
    fi
    say "starting again on ${nodes[*]}"
done
