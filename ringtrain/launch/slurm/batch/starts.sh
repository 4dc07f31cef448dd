# ── the run folder ──────────────────────────────────────────────────────────────────────────────────────────────────
# The job names it: a job keeps its number when it is queued again, and finds its folder.
folder="$runs/$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}"

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
export RINGTRAIN_SIGNAL_S="${RINGTRAIN_SIGNAL_S:-120}"  # of --signal: the note of a run at its start names it
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
        scontrol requeue "$SLURM_JOB_ID" || say "scontrol requeue failed: go on with $by_hand"
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
    local i answers alive=() on=() lost=() before="$asked"
    answers=" $(answering | tr '\n' ' ')"
    [ "$asked" = "$before" ] || queue_again  # a signal came meanwhile
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
# start_until_done: start the ranks again and again until the job ends. The script has, besides:
#   rank_command       sets `command` to that of each rank
#   newest_checkpoint  prints a word, which a new checkpoint changes; `looked` says where it looks
#   judge              sets `next` after an end with `status`: "end N" ends the job with N; "queue" queues it again;
#                      "restart" starts again on the nodes that answer; "look N" too if a node is lost, else ends with N
#   by_hand            how to go on if the job cannot be queued again
start_until_done() {
    local next
    mkdir -p "$folder" || stop "the run folder $folder cannot be made"
    say "start $((${SLURM_RESTART_COUNT:-0} + 1)) on ${nodes[*]}, run folder $folder"
    while :; do
        [ -z "$asked" ] || queue_again
        count_start
        if [ "$idle" -ge "$idle_starts" ]; then
            say "no new checkpoint in $idle starts: this job gives up; it looked in $looked"
            exit 1
        fi
        tell_job_end
        mpi_command
        rank_command
        [ -z "$asked" ] || queue_again
        say "${mpi[*]} ${command[*]}"
        start "${mpi[@]}" "${command[@]}"
        judge
        case "$next" in
            end*) exit "${next#end }" ;;
            queue) queue_again ;;
        esac
        if drop_lost_nodes; then
            [ ${#nodes[@]} -ge "$min_nodes" ] || queue_again
        elif [ "$next" != restart ]; then
            exit "${next#look }"  # the ranks printed their error, or could not begin
        fi
        say "starting again on ${nodes[*]}"
    done
}
