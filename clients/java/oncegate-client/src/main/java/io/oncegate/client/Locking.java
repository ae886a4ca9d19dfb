package io.oncegate.client;

import io.oncegate.client.Rounds.Failed;
import io.oncegate.client.Rounds.Plan;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Pattern;

/** The calls of locks: acquire, withdraw, release. Locks always fail closed. */
final class Locking {
    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9][A-Za-z0-9._:-]{0,127}");

    /** A longer wait is several calls with the same nonce. */
    private static final Duration WAIT_MAX = Duration.ofSeconds(20);

    private static final Duration WAIT_MIN = Duration.ofMillis(5);

    private final Context context;

    Locking(Context context) {
        this.context = context;
    }

    static String checked(String name) {
        if (name == null || !NAME.matcher(name).matches()) {
            throw new IllegalArgumentException(
                    "\""
                            + name
                            + "\" is not the name of a lock; write up to 128 letters, digits or . _"
                            + " : -, such as \"stock:42\"");
        }
        return name;
    }

    static Call renewal(String name, String attempt, String lease) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("attempt", attempt);
        if (lease != null) {
            body.put("lease", lease);
        }
        return post(name, "renewal", body, Duration.ZERO);
    }

    private static Call post(String name, String call, Map<String, Object> body, Duration waits) {
        return new Call(
                "/v1/locks/" + name + "/" + call,
                Json.write(body),
                "name",
                waits,
                new Subject(name, null));
    }

    /**
     * Acquires the lock.
     *
     * @param wait null: without end
     * @param interruptible false: an interrupt is remembered, and the wait continues
     */
    Hold acquire(String name, LockTerms terms, Duration wait, boolean interruptible)
            throws InterruptedException {
        if (interruptible && Thread.interrupted()) {
            throw new InterruptedException("interrupted before the lock call");
        }
        String nonce = Context.nonce();
        boolean mayWait = false;
        try {
            Response answer = ask(name, terms, nonce, wait, interruptible);
            if (answer.status() == 201) {
                if (!name.equals(answer.text("name"))) {
                    mayWait = true;
                    throw Rejected.lockDiffers(answer.text("name"), name);
                }
                return hold(name, terms, answer);
            }
            if (answer.status() != 409) {
                throw new Rejected(answer);
            }
            mayWait = terms.fair() && "lock_held".equals(answer.text("code"));
            context.events()
                    .send("lock_held", new Subject(name, null), "code", answer.text("code"));
            throw new LockNotAcquired(answer);
        } catch (Failed failed) {
            mayWait = failed.uncertain || terms.fair();
            throw failed.error();
        } catch (InterruptedException interrupted) {
            mayWait = true;
            throw interrupted;
        } finally {
            if (mayWait) {
                withdraw(name, nonce);
            }
        }
    }

    /** Returns the holders of the lock; empty if it is free and no request queues. */
    Optional<LockRecord> lookup(String name) throws InterruptedException {
        var call =
                new Call(
                        "/v1/locks/" + name,
                        null,
                        "waiting",
                        Duration.ZERO,
                        new Subject(name, null));
        var plan =
                new Plan(context.rounds().first(), context.options().claimWithin, true, late -> {});
        Response answer;
        try {
            answer = context.rounds().run(call, plan);
        } catch (Failed failed) {
            throw failed.error();
        }
        if (answer.status() == 404 && "not_found".equals(answer.text("code"))) {
            return Optional.empty();
        }
        if (answer.status() != 200) {
            throw new Rejected(answer);
        }
        return Optional.of(LockRecord.of(name, answer));
    }

    private Hold hold(String name, LockTerms terms, Response answer) {
        Call renewal = renewal(name, answer.text("attempt"), terms.lease());
        var lease = new Lease(context, renewal, answer.gateway(), answer.leaseEnd(), "lock_lost");
        var hold = new Hold(this, name, terms.lease(), answer, lease);
        context.events().send("lock_acquired", new Subject(name, null), "fence", hold.fence());
        if (!hold.isLive()) {
            hold.close();
            String url = context.options().urls.get(answer.gateway());
            throw new Unavailable(List.of(Cause.tooLate(url, "hold")), false);
        }
        lease.start();
        return hold;
    }

    private Response ask(
            String name, LockTerms terms, String nonce, Duration wait, boolean interruptible)
            throws Failed, InterruptedException {
        long start = System.nanoTime();
        Duration rest = wait == null ? WAIT_MAX : wait;
        while (true) {
            Duration part = rest.compareTo(WAIT_MAX) < 0 ? rest : WAIT_MAX;
            Duration within = context.options().claimWithin;
            var plan = new Plan(context.rounds().first(), within, interruptible, late -> {});
            Response answer = context.rounds().run(call(name, terms, nonce, part), plan);
            rest = rest(wait, start);
            if (answer.status() != 409
                    || !"lock_held".equals(answer.text("code"))
                    || rest.compareTo(WAIT_MIN) < 0) {
                return answer;
            }
            Duration pause = Pauses.after(answer, part);
            Pauses.sleep(pause.compareTo(rest) < 0 ? pause : rest, interruptible);
            rest = rest(wait, start);
            if (rest.compareTo(WAIT_MIN) < 0) {
                return answer;
            }
        }
    }

    private static Duration rest(Duration wait, long start) {
        return wait == null ? WAIT_MAX : wait.minusNanos(System.nanoTime() - start);
    }

    private static Call call(String name, LockTerms terms, String nonce, Duration wait) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("mode", terms.mode().wire());
        body.put("limit", terms.limit());
        body.put("owner", terms.owner());
        body.put("attempt_nonce", nonce);
        body.put("lease", terms.lease());
        body.put("wait", wait.toMillis() < 1 ? null : Durations.text(wait));
        body.put("fair", terms.fair() ? true : null);
        body.values().removeIf(value -> value == null);
        return post(name, "holds", body, wait);
    }

    /**
     * Removes hold and ticket of an acquisition that ended without a hold. In the background: the
     * caller has given up.
     */
    private void withdraw(String name, String nonce) {
        Call call = post(name, "release", Map.of("attempt_nonce", nonce), Duration.ZERO);
        context.background().run(() -> finish(call, context.rounds().first()));
    }

    void release(Hold hold, int gateway) {
        Call call = post(hold.name(), "release", Map.of("attempt", hold.attempt()), Duration.ZERO);
        Response answer = finish(call, gateway);
        if (answer == null) {
            return;
        }
        if (answer.status() == 200) {
            context.events().send("lock_released", call.subject(), "fence", hold.fence());
        } else if (hold.lost() == null) {
            context.events().send("lock_lost", call.subject(), "code", answer.text("code"));
        }
    }

    /**
     * Repeats a call until it is answered; an interrupt is remembered. Null without an answer: the
     * hold ends with its lease.
     */
    private Response finish(Call call, int gateway) {
        try {
            return context.rounds()
                    .run(
                            call,
                            new Plan(gateway, context.options().settleWithin, false, late -> {}));
        } catch (Failed failed) {
            context.events().send("unavailable", call.subject(), "causes", failed.causes.values());
        } catch (InterruptedException impossible) {
            throw new IllegalStateException("This call is not interruptible", impossible);
        }
        return null;
    }
}
