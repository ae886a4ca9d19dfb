package io.oncegate.client;

/** One operation of {@link OncegateClient#claimBatch}. */
public record ClaimItem(String operation, Object contents, Terms terms) {
    /** An item with the operator's terms. */
    public ClaimItem(String operation, Object contents) {
        this(operation, contents, Terms.NONE);
    }
}
