package io.oncegate.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * One try at an operation, to be repeated with the same nonce.
 *
 * @param contents in canonical form
 * @param fingerprint in canonical form, or null
 */
record ClaimRequest(
        String operation,
        JsonText contents,
        JsonText fingerprint,
        Terms terms,
        String nonce,
        String globalId) {
    static ClaimRequest of(Context context, String operation, Object contents, Terms terms) {
        if (operation == null || operation.isEmpty()) {
            throw new IllegalArgumentException(
                    "The operation has no name; write one such as \"order.submit\"");
        }
        // In canonical form, so that ambiguous contents are refused here.
        String canonical = Contents.canonical(contents);
        Object fingerprint = terms.fingerprint();
        JsonText mark =
                fingerprint == null ? null : new JsonText(Contents.fingerprint(fingerprint));
        String id = Contents.id(context.app(), operation, canonical);
        return new ClaimRequest(
                operation, new JsonText(canonical), mark, terms, Context.nonce(), id);
    }

    Map<String, Object> body(Duration wait) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("operation", operation);
        fields.put("contents", contents);
        fields.put("attempt_nonce", nonce);
        fields.put("fingerprint", fingerprint);
        fields.put("lease", terms.lease());
        fields.put("retention", terms.retention());
        fields.put("take_over", terms.takesOver() ? true : null);
        fields.put("on_lease_end", terms.isUnknownOnLeaseEnd() ? "unknown" : null);
        fields.put("wait", wait.isZero() ? null : Durations.text(wait));
        fields.values().removeIf(value -> value == null);
        return fields;
    }

    Call call(Duration wait) {
        return new Call("/v1/claims", Json.write(body(wait)), "global_id", wait, subject());
    }

    Subject subject() {
        return new Subject(operation, globalId);
    }
}
