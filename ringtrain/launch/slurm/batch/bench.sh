# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────────
folder="$results/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$folder" || stop "the folder $folder for results cannot be made"
find_program ringtrain
tell_job_end
mpi_command
say "on ${nodes[*]}, results in $folder"
scontrol show job "$SLURM_JOB_ID" >"$folder/job.txt"

# measure NAME VERB FLAG...: copy the output of the ranks to the job's log and to NAME.txt; set `status`.
measure() {
    local name="$1"
    shift
    say "${mpi[*]} ${program[*]} $*"
    "${mpi[@]}" "${program[@]}" "$@" 2>&1 | tee "$folder/$name.txt"
    status=${PIPESTATUS[0]}
}

measure doctor doctor
measure allreduce bench-allreduce --json "$folder/allreduce.json" --csv "$folder/allreduce.csv" "${flags[@]}"
ended=$status
if [ "$tune" = yes ]; then
    measure tune tune --tuning "$folder/tuning.json"
    [ "$ended" -ne 0 ] || ended=$status
fi
say "ended with status $ended; results are in $folder"
exit "$ended"
