"""Errors and notes of this room that users see."""

from ringtrain.template import Template

# doctor.memory
LIMITLESS = "without limit"

# doctor.ranks
ONE_SIDED_TRY = "--asynchronous needs them: try another OMPI_MCA_osc (ompi_info lists them), or another MPI"
ULFM_RESUME = "after a rank's death a run goes on from its checkpoint: --resume auto"


# doctor.devices
STAGING = Template("{rate:.0f} GB/s")

# doctor.timeout
TIMED_OUT = Template("the check of {name} has not ended after {seconds:g} s, in {place}")
