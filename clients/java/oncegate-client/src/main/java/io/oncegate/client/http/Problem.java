package io.oncegate.client.http;

import io.oncegate.client.Duplicate;
import io.oncegate.client.JsonText;
import io.oncegate.client.NotCanonical;
import io.oncegate.client.Rejected;
import io.oncegate.client.Unavailable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A refusal, as a problem document (RFC 9457).
 *
 * @param detail explanation and correction, for people
 * @param state the state of the claim, or null
 * @param responseStatus the status of a response that was not stored, or 0
 * @param fields more fields of the response, such as {@code Retry-After}
 */
public record Problem(
        int status,
        String code,
        String detail,
        String state,
        int responseStatus,
        List<Field> fields) {
    private static final Map<String, String> TITLES =
            Map.ofEntries(
                    Map.entry("idempotency_key_invalid", "Idempotency key invalid"),
                    Map.entry("principal_missing", "Principal missing"),
                    Map.entry("ambiguous_target", "Ambiguous target"),
                    Map.entry("invalid_request", "Invalid request"),
                    Map.entry("contents_not_canonical", "Contents not canonical"),
                    Map.entry("duplicate", "Duplicate"),
                    Map.entry("response_not_stored", "Response not stored"),
                    Map.entry("body_too_large", "Body too large"),
                    Map.entry("fingerprint_mismatch", "Fingerprint mismatch"),
                    Map.entry("quota_exceeded", "Quota exceeded"),
                    Map.entry("body_not_seen", "Body not seen"),
                    Map.entry("identity_differs", "Identity differs"),
                    Map.entry("not_supported", "Not supported"),
                    Map.entry("store_unavailable", "Store unavailable"));

    /** A request that is refused. */
    static final class Refused extends RuntimeException {
        final transient Problem problem;

        Refused(Problem problem) {
            super(problem.detail, null, false, false);
            this.problem = problem;
        }
    }

    /** A problem of this status and code. */
    public static Problem of(int status, String code, String detail) {
        return new Problem(status, code, detail, null, 0, List.of());
    }

    /** The body was read before the middleware could see it: a mistake in the application. */
    public static Problem bodyNotSeen(String why) {
        return of(
                500,
                "body_not_seen",
                why + " Put the idempotency filter before what reads the body. Nothing ran.");
    }

    /** The body is longer than {@code body_bytes}. */
    public static Problem bodyTooLarge(int bytes) {
        return of(
                413,
                "body_too_large",
                "A request with an Idempotency-Key may have a body of "
                        + bytes
                        + " bytes; send a shorter one.");
    }

    /** The upload ended early. */
    public static Problem incomplete() {
        return of(
                400,
                "invalid_request",
                "The body of the request ended early; send it again, with the same key.");
    }

    /**
     * Returns the problem that an error of the client means for the caller of a service; null for
     * others, and for errors after the work: they do not replace its response.
     */
    public static Problem of(Throwable error) {
        if (error instanceof NotCanonical wrong) {
            return of(422, "contents_not_canonical", wrong.getMessage());
        }
        if (error instanceof Rejected rejected && rejected.status() == 429) {
            return quota(rejected);
        }
        if (error instanceof Rejected rejected && "identity_differs".equals(rejected.code())) {
            return identityDiffers();
        }
        if (error instanceof Unavailable none) {
            return unavailable(none.mayHaveActed());
        }
        return error instanceof Rejected ? unavailable(false) : null;
    }

    /**
     * Returns the problem of a duplicate that is in progress or unknown, or whose result is lost.
     */
    public static Problem of(Duplicate<?> duplicate) {
        if (duplicate.isInProgress()) {
            return of(409, "duplicate", "The operation is in progress; repeat the request later.")
                    .state("in_progress")
                    .retryAfter(duplicate.retryAfter().toMillis());
        }
        return duplicate.isSucceeded()
                ? of(
                                409,
                                "response_not_stored",
                                "The operation is done; its result was not stored.")
                        .state("succeeded")
                : of(
                                409,
                                "duplicate",
                                "The outcome of an earlier attempt is not known. It is not run"
                                        + " again: look up its effect.")
                        .state("unknown");
    }

    /** Returns the problem of an operation that was claimed with other data. */
    public static Problem mismatch() {
        return of(
                422,
                "fingerprint_mismatch",
                "This operation was claimed with other data; a repeat must be the same.");
    }

    static Problem quota(Rejected rejected) {
        return of(429, "quota_exceeded", "The quota of this service is used up; repeat it later.")
                .retryAfter(rejected.retryAfter().toMillis());
    }

    static Problem identityDiffers() {
        return of(
                500,
                "identity_differs",
                "This service and its gateway name operations differently. Nothing ran; its"
                        + " operator must correct the credential.");
    }

    static Problem unavailable(boolean mayHaveActed) {
        String detail =
                mayHaveActed
                        ? "Nothing ran, but a gateway may have taken the key. Repeat the request"
                                + " with the same key: if it was taken, the answer is 409 until the"
                                + " claim ends or is settled."
                        : "It cannot be known whether this request ran before. Nothing ran; repeat"
                                + " it.";
        return of(503, "store_unavailable", detail).retryAfter(1000);
    }

    Problem state(String state) {
        return new Problem(status, code, detail, state, responseStatus, fields);
    }

    Problem field(String name, String value) {
        List<Field> more = new ArrayList<>(fields);
        more.add(new Field(name, value));
        return new Problem(status, code, detail, state, responseStatus, List.copyOf(more));
    }

    Problem retryAfter(long millis) {
        return field("Retry-After", Long.toString(Math.max(1, (millis + 999) / 1000)));
    }

    Problem ofResponse(int responseStatus) {
        return new Problem(status, code, detail, state, responseStatus, fields);
    }

    /** Returns the title of the code. */
    public String title() {
        return TITLES.getOrDefault(code, "Request refused");
    }

    /** Returns the type, {@code urn:oncegate:problem:} and the code. */
    public String type() {
        return "urn:oncegate:problem:" + code;
    }

    /** Returns the answer with this problem document. */
    public Reply reply() {
        Map<String, Object> members = new LinkedHashMap<>();
        members.put("type", type());
        members.put("title", title());
        members.put("status", status);
        members.put("detail", detail);
        members.put("code", code);
        if (state != null) {
            members.put("state", state);
        }
        if (responseStatus != 0) {
            members.put("response_status", responseStatus);
        }
        List<Field> all = new ArrayList<>();
        all.add(new Field("Content-Type", "application/problem+json"));
        all.add(new Field("Cache-Control", "no-store"));
        all.addAll(fields);
        byte[] body = JsonText.of(members).text().getBytes(StandardCharsets.UTF_8);
        return new Reply(status, all, body, List.of());
    }
}
