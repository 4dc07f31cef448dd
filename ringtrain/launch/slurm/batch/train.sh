# ── flags of the run ────────────────────────────────────────────────────────────────────────────────────────────────
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

# rank_command: set `command` to that of each rank. A --resume among the flags counts until the run has its own
# checkpoint (the best one is written first); `--resume auto` respects one of a run file.
rank_command() {
    command=("${program[@]}" train "${flags[@]}")
    [ "$own_resume" = yes ] && [ "$(newest_checkpoint)" = none ] && [ ! -e "$folder/checkpoints/best.h5" ] ||
        command+=(--resume auto)
    before="$(which_outcome)"
}

# outcome: print the outcome that the run wrote, since mpirun may end with 0 after the death of a node. `running`: the
# run was killed; nothing: it had not begun.
outcome() { sed -n 's/.*"outcome": *"\([a-z]*\)".*/\1/p' "$folder/outcome.json" 2>/dev/null; }
exit_code() { sed -n 's/.*"exit_code": *\([0-9]*\).*/\1/p' "$folder/outcome.json" 2>/dev/null; }
# which_outcome: identify the outcome file; opening it makes NFS ask its server. An unchanged file is of an earlier
# start, or of another job's run in this folder, and does not count.
which_outcome() { { stat -c '%i %y' - <"$folder/outcome.json"; } 2>/dev/null; }

# ── its end ─────────────────────────────────────────────────────────────────────────────────────────────────────────
judge() {
    local how="" ended
    [ "$(which_outcome)" = "$before" ] || how="$(outcome)"
    ended="as ${how:-not begun}"
    say "ended ${ended/as running/without a word}, status $status; newest checkpoint: $(newest_checkpoint)"
    next="look $((status ? status : 1))"
    case "$how" in running | stalled) next=restart ;; esac
    if [ "$how" = interrupted ] || [ "$status" = 75 ] || [ -n "$asked" ]; then next=queue; fi
    case "$how" in
        done) next="end 0" ;;
        usage | diverged) next="end $(exit_code)" ;;
    esac
}

find_program ringtrain
looked="$folder/checkpoints" by_hand="sbatch and --out $folder"
start_until_done
