// The life of a claim with the client that openapi-generator generated. Arguments: the gateway's URL and a credential.

import com.fasterxml.jackson.databind.ObjectMapper;
import io.oncegate.client.ApiClient;
import io.oncegate.client.ApiException;
import io.oncegate.client.api.ClaimsApi;
import io.oncegate.client.model.*;
import java.time.OffsetDateTime;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.UUID;

public final class Main {
    private static final ObjectMapper JSON = ApiClient.createDefaultObjectMapper();

    private interface Call {
        Object make() throws ApiException;
    }

    public static void main(String[] arguments) throws Exception {
        ClaimsApi claims = api(arguments[0], arguments[1]);

        // An operation from its claim to its duplicate, with an object as contents and as result.
        Map<String, Object> order = Map.of("order_id", "java-" + nonce(), "lines", Arrays.asList(1, 2.5, null, true));
        ClaimRequest request =
                new ClaimRequest().contents(order).operation("order.submit").attemptNonce(nonce()).lease("30s");
        ClaimGranted granted = claims.claim(request, null, null, null);
        check(granted.getState() == State.IN_PROGRESS && granted.getFence() > 0, granted);
        check(granted.getDegraded() == null && granted.getLeaseMs() > 20_000 && granted.getLeaseMs() <= 30_000, granted);
        check(claims.claim(request, null, null, null).getRepeated(), "not repeated");

        RenewalRequest renewal = new RenewalRequest().attempt(granted.getAttempt()).lease("2m");
        check(claims.renewClaim(granted.getGlobalId(), renewal, null).getLeaseMs() > 60_000, "not renewed");
        ClaimRequest other = new ClaimRequest().contents(order).operation("order.submit").attemptNonce(nonce());
        Problem running = problem("duplicate", () -> claims.claim(other, null, null, null));
        check(running.getState() == State.IN_PROGRESS && running.getRetryAfterMs() > 0, running);

        OutcomeRequest success = new OutcomeRequest()
                .attempt(granted.getAttempt())
                .outcome(OutcomeRequest.OutcomeEnum.SUCCESS)
                .result(Map.of("order_number", 90017));
        OutcomeTaken taken = claims.settleClaim(granted.getGlobalId(), success, null);
        check(taken.getState() == OutcomeTaken.StateEnum.SUCCEEDED && !taken.getLate(), taken);
        Problem done = problem("duplicate", () -> claims.claim(request, null, null, null));
        check(done.getState() == State.SUCCEEDED, done);
        check(done.getResult().equals(Map.of("order_number", 90017)), done);

        ClaimRecord record = claims.inspectClaim(granted.getGlobalId(), null);
        check(record.getContents().equals(order) && record.getExpiresAt().isAfter(OffsetDateTime.now()), record);

        // Contents of all other kinds, and all other outcomes.
        settle(claims, "java-" + nonce(), OutcomeRequest.OutcomeEnum.FAILURE, OutcomeTaken.StateEnum.RELEASED);
        settle(claims, Math.random(), OutcomeRequest.OutcomeEnum.UNKNOWN, OutcomeTaken.StateEnum.UNKNOWN);
        settle(claims, List.of("java", nonce()), OutcomeRequest.OutcomeEnum.SUCCESS, OutcomeTaken.StateEnum.SUCCEEDED);

        // Batches: items are grants and problems.
        ClaimRequest item = new ClaimRequest().contents(Map.of("order_id", "java-" + nonce()));
        ClaimBatchRequest batch = new ClaimBatchRequest().items(List.of(item, item, new ClaimRequest().contents("")));
        List<ClaimBatchItem> items = claims.claimBatch(batch, null).getItems();
        check(items.stream().map(ClaimBatchItem::getStatus).toList().equals(List.of(201, 409, 422)), items);
        check(items.get(1).getCode().equals("duplicate") && items.get(1).getState() == State.IN_PROGRESS, items);
        OutcomeBatchRequest reports = new OutcomeBatchRequest().items(List.of(
                report(items.get(0), OutcomeBatchRequestItem.OutcomeEnum.SUCCESS),
                report(items.get(0), OutcomeBatchRequestItem.OutcomeEnum.FAILURE)));
        List<OutcomeBatchItem> outcomes = claims.settleBatch(reports, null).getItems();
        check(outcomes.get(0).getStatus() == 200 && outcomes.get(1).getCode().equals("already_succeeded"), outcomes);

        // Problems.
        problem("invalid_request", () -> claims.claim(new ClaimRequest().contents(1).lease("soon"), null, null, null));
        problem("contents_empty", () -> claims.claim(new ClaimRequest().contents(""), null, null, null));
        ClaimRequest changed = new ClaimRequest().contents(order).operation("order.submit").fingerprint(1);
        problem("fingerprint_mismatch", () -> claims.claim(changed, null, null, null));
        problem("not_found", () -> claims.inspectClaim("0".repeat(32), null));
        ClaimsApi stranger = api(arguments[0], "nobody.aaaaaaaaaaaaaaaaaaaaaaaa");
        problem("unauthenticated", () -> stranger.claim(request, null, null, null));

        check(claims.computeGlobalId(request, null).getGlobalId().equals(granted.getGlobalId()), "another global ID");

        // A later version adds fields and codes.
        String text = JSON.writeValueAsString(done).replace("\"duplicate\"", "\"code_of_a_later_version\"");
        text = text.replaceFirst("\\{", "{\"field_of_a_later_version\": [1], ");
        check(JSON.readValue(text, Problem.class).getCode().equals("code_of_a_later_version"), text);
        System.out.println("ok");
    }

    private static ClaimsApi api(String url, String credential) {
        ApiClient client = new ApiClient();
        client.updateBaseUri(url);
        client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + credential));
        return new ClaimsApi(client);
    }

    private static void settle(ClaimsApi claims, Object contents, OutcomeRequest.OutcomeEnum outcome, OutcomeTaken.StateEnum state)
            throws Exception {
        ClaimGranted held = claims.claim(new ClaimRequest().contents(contents), null, null, null);
        OutcomeRequest report = new OutcomeRequest().attempt(held.getAttempt()).outcome(outcome);
        check(claims.settleClaim(held.getGlobalId(), report, null).getState() == state, state);
        ClaimRequest again = new ClaimRequest().contents(contents).takeOver(true).attemptNonce(nonce());
        if (state == OutcomeTaken.StateEnum.SUCCEEDED) {
            Problem found = problem("duplicate", () -> claims.claim(again, null, null, null));
            check(found.getResult() == null, found);
        } else {
            Boolean takenOver = claims.claim(again, null, null, null).getTakenOver();
            check((takenOver != null && takenOver) == (state == OutcomeTaken.StateEnum.UNKNOWN), takenOver);
        }
    }

    private static OutcomeBatchRequestItem report(
            ClaimBatchItem held, OutcomeBatchRequestItem.OutcomeEnum outcome) {
        return new OutcomeBatchRequestItem()
                .globalId(held.getGlobalId())
                .attempt(held.getAttempt())
                .outcome(outcome);
    }

    /** The problem of a call, which must have this code. */
    private static Problem problem(String code, Call call) throws Exception {
        try {
            throw new AssertionError(code + " expected, not " + call.make());
        } catch (ApiException refused) {
            Problem problem = JSON.readValue(refused.getResponseBody(), Problem.class);
            check(problem.getCode().equals(code) && problem.getStatus() == refused.getCode(), problem);
            return problem;
        }
    }

    private static String nonce() {
        return UUID.randomUUID().toString();
    }

    private static void check(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
