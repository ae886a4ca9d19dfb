package io.oncegate.client;

import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;

/** No gateway gave an answer in time. The work was not started. */
public final class Unavailable extends OncegateException {
    private final transient List<Cause> causes;
    private final boolean mayHaveActed;

    Unavailable(Collection<Cause> causes, boolean mayHaveActed) {
        super(
                "No gateway answered: "
                        + causes.stream().map(Cause::toString).collect(Collectors.joining("; ")));
        this.causes = List.copyOf(causes);
        this.mayHaveActed = mayHaveActed;
    }

    /** Returns the last failure of each gateway that was tried. */
    public List<Cause> causes() {
        return causes;
    }

    /**
     * Returns true if a gateway may have done what was asked, and its answer was lost: a claim may
     * hold until it ends.
     */
    public boolean mayHaveActed() {
        return mayHaveActed;
    }
}
