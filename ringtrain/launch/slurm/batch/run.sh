# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────
[ ${#flags[@]} -gt 0 ] || stop "no command: set flags in this script"
find_program "${flags[0]}"
export PYTHONUNBUFFERED="${PYTHONUNBUFFERED-1}"  # or a rank that is killed takes its last lines with it

# Ranks end with 75 one after another. srun ends the others after the first, with 143 then, unless it is told to wait.
bad_exit=(--kill-on-bad-exit=0 --wait=30)

rank_command() { command=("${program[@]}" "${flags[@]:1}"); }

# newest_checkpoint: print the time of the newest file of the command's checkpoints, or "none". A command that was told
# to stop and ended with 75 says that it has saved one: `saved` has the time of that.
saved="$folder/slurm.saved"
newest_checkpoint() {
    local time
    # shellcheck disable=SC2086  # folders, files and patterns
    time="$(find "$saved" $checkpoints -type f -printf '%T@\n' 2>/dev/null | sort -n | tail -n 1)"
    echo "${time:-none}"
}
looked="${checkpoints:-no folder: 'checkpoints' in this script names it}" by_hand=sbatch

# judge: mpirun may end with 0 after the death of a node. A command without a handler dies of the signal to stop.
judge() {
    say "ended with status $status"
    [ -z "$asked" ] || [ "$status" != 75 ] || touch "$saved"
    if [ "$status" = 75 ] || { [ -n "$asked" ] && [ "$status" -ge 128 ]; }; then
        next=queue
    else
        next="look $status"
    fi
}

# ── the last seconds before the limit ───────────────────────────────────────────────────────────────────────────────
# Slurm ends a job at its limit, and does not queue it again: this script does, before that.
last_seconds() {
    say "still running $last_s s before the limit"
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
    queue_again
}
trap last_seconds ALRM

# watch_limit: send ALRM to this script then. The limit may have moved while this slept.
watch_limit() {
    local left
    while tell_job_end; [ -n "${RINGTRAIN_JOB_END:-}" ]; do
        left=$((RINGTRAIN_JOB_END - $(date +%s) - last_s))
        # Again and again: bash 5.2 loses a signal that comes while it reads a command substitution.
        [ "$left" -gt 0 ] || { kill -ALRM $$ && left=1; } || return
        sleep "$left"
    done
}
# end_children: the watch is a process group (set -m), which KILL ends whatever it does at that moment. A command still runs
# if no signal has found `child` set yet.
watch=""
end_children() {
    local job
    for job in $(jobs -pr); do
        if [ "$job" = "$watch" ]; then kill -KILL -- "-$job"; else kill "$job"; fi
    done
}
trap end_children EXIT
set -m
watch_limit &
watch=$!
set +m

start_until_done
