package io.oncegate.client;

import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;

/** No gateway gave an answer in time. The work was not started. */
public final class Unavailable extends OncegateException {
    private final transient List<Cause> causes;

    Unavailable(Collection<Cause> causes) {
        super(
                "No gateway answered: "
                        + causes.stream().map(Cause::toString).collect(Collectors.joining("; ")));
        this.causes = List.copyOf(causes);
    }

    /** Returns the last failure of each gateway that was tried. */
    public List<Cause> causes() {
        return causes;
    }
}
