package io.oncegate.client;

import java.lang.reflect.Type;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.function.BiFunction;

/**
 * Another attempt is running or has completed the operation. A value, not an error.
 *
 * @param <T> the type of the work's result
 */
public final class Duplicate<T> implements Result<T>, Claimed {
    private static final String MARKER = "$oncegate";

    private final Response answer;
    private final String globalId;
    private final BiFunction<JsonText, Type, Object> reader;
    private final Type type;
    private final boolean waited;

    Duplicate(
            Response answer,
            String globalId,
            BiFunction<JsonText, Type, Object> reader,
            Type type,
            boolean waited) {
        this.answer = answer;
        this.globalId = globalId;
        this.reader = reader;
        this.type = type;
        this.waited = waited;
    }

    /** Returns {@code in_progress}, {@code succeeded} or {@code unknown}. */
    public String state() {
        return answer.text("state");
    }

    /** Returns true if another attempt is at work. */
    public boolean isInProgress() {
        return "in_progress".equals(state());
    }

    /** Returns true if another attempt has succeeded. */
    public boolean isSucceeded() {
        return "succeeded".equals(state());
    }

    /**
     * Returns the result of the earlier success, as the type that {@code once} was given; null
     * without one. Without a type it is the plain JSON value: text, {@code Integer}, {@code Long},
     * decimal, list or map.
     */
    @Override
    @SuppressWarnings("unchecked") // The caller names the type, here or by a parameter of once.
    public T result() {
        return type == null ? (T) PlainResults.plain(stored()) : as(type);
    }

    /** Returns the result of the earlier success as this type; null without one. */
    @SuppressWarnings("unchecked") // The caller names the type.
    public <U> U as(Type type) {
        Object stored = stored();
        return stored == null ? null : (U) reader.apply(JsonText.of(stored), type);
    }

    /** Returns the stored result as JSON; null without one. */
    public JsonText json() {
        Object stored = stored();
        return stored == null ? null : JsonText.of(stored);
    }

    /**
     * Returns why the result of the success was not stored, such as {@code too_large}; null if it
     * was.
     */
    public String resultOmitted() {
        return answer.fields().get("result") instanceof Map<?, ?> members
                        && members.size() == 1
                        && members.get(MARKER) instanceof Map<?, ?> marker
                        && marker.get("omitted") instanceof String why
                ? why
                : null;
    }

    private Object stored() {
        return resultOmitted() == null ? answer.fields().get("result") : null;
    }

    /** Returns the time after which a repeat can help. */
    public Duration retryAfter() {
        return answer.retryAfter();
    }

    /** Returns true if the call waited for the other attempt before it was answered. */
    public boolean hasWaited() {
        return waited;
    }

    /** Returns the time of the claim. */
    public Instant claimedAt() {
        return answer.instant("claimed_at");
    }

    /** Returns the time at which the claim or its record ends. */
    public Instant expiresAt() {
        return answer.instant("expires_at");
    }

    /** Returns false if it could not be checked that the contents are equal, such as a late one. */
    public boolean contentsVerified() {
        return answer.flag("contents_verified", true);
    }

    /** Returns the outage policy that answered, or null. */
    public String degraded() {
        return answer.text("degraded");
    }

    /** Returns in observe mode the answer that enforcing would have given, else null. */
    public String wouldBe() {
        return answer.text("would_be");
    }

    /** Returns the ID of the operation. */
    @Override
    public String globalId() {
        return globalId;
    }

    Duplicate<T> afterWait() {
        return new Duplicate<>(answer, globalId, reader, type, true);
    }

    <U> Duplicate<U> of(Type type) {
        return new Duplicate<>(answer, globalId, reader, type, waited);
    }

    @Override
    public String toString() {
        return "Duplicate[state=" + state() + ", globalId=" + globalId + "]";
    }
}
