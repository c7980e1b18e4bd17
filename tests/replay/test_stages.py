"""The engine on which an earlier stage of a training is replayed."""

import shoal
from shoal.replay.stages import matching_engine


def test_a_stage_runs_on_the_given_engine_unless_it_was_computed_otherwise():
    model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
    with shoal.Engine(model, threads=1, backend="loop") as engine:
        same, other = (shoal.Engine(model, threads=1, backend=backend) for backend in ("loop", "vmap"))
        same.close()
        other.close()
        with (
            matching_engine(None, engine) as unasked,
            matching_engine(same, engine) as alike,
            matching_engine(other, engine) as reopened,
        ):
            assert unasked is engine
            assert alike is engine
            assert (reopened is engine, reopened.backend) == (False, "vmap")
