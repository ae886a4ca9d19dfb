package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.oncegate.client.Answerer;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.spring.Filtered.Answer;
import io.oncegate.spring.Filtered.Service;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** What a gateway says in its answers to claims, before both filters. */
class GatewayAnswersTest {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final byte[] NOTHING = {};

    private final MemoryGateway gateway = new MemoryGateway();

    /** Paths of outcomes, each with the outcome. */
    private final List<String> outcomes = new ArrayList<>();

    /** A client of a gateway that answers each claim with this member. */
    private OncegateClient client(String member, String value) {
        Answerer answers =
                (path, body) -> {
                    if (path.endsWith("/outcome")) {
                        outcomes.add(path + " " + read(body).get("outcome").asText());
                        return gateway.answer(path, body);
                    }
                    Answerer.Answer answer = gateway.answer(path, body);
                    ObjectNode members = read(answer.body()).put(member, value);
                    return new Answerer.Answer(answer.status(), members.toString());
                };
        return gateway.client(options -> options.answerer(answers));
    }

    private static ObjectNode read(String json) {
        try {
            return (ObjectNode) JSON.readTree(json);
        } catch (IOException wrong) {
            throw new UncheckedIOException(wrong);
        }
    }

    static Stream<Arguments> policies() {
        return Stream.of(Filtered.values())
                .flatMap(
                        filter ->
                                Stream.of(
                                        Arguments.of(filter, "local", false),
                                        Arguments.of(filter, "fail_open", false),
                                        Arguments.of(filter, "fail_open", true)));
    }

    @ParameterizedTest
    @MethodSource("policies")
    void responsesNameThePolicyThatAnsweredTheClaim(Filtered filter, String policy, boolean clears)
            throws Exception {
        var service = new Service(client("degraded", policy), false, clears);
        Answer first = filter.post(service, "k-1", NOTHING);
        assertThat(first).isEqualTo(new Answer(201, policy, null, ""));
        Answer second = filter.post(service, "k-1", NOTHING);
        assertThat(second).isEqualTo(new Answer(201, policy, "true", ""));
        assertThat(service.bodies()).hasSize(1);
    }

    @ParameterizedTest
    @EnumSource(Filtered.class)
    void responsesOfAGatewayWithItsStoreNameNoPolicy(Filtered filter) throws Exception {
        var service = new Service(client("degraded", null), false, false);
        assertThat(filter.post(service, "k-1", NOTHING).degraded()).isNull();
        assertThat(filter.post(service, "k-1", NOTHING).degraded()).isNull();
    }

    @ParameterizedTest
    @EnumSource(Filtered.class)
    void aGrantOfAnotherIdentityIsReleasedAndNothingRuns(Filtered filter) throws Exception {
        String other = "0".repeat(32);
        var service = new Service(client("global_id", other), false, false);
        Answer answer = filter.post(service, "k-1", NOTHING);
        assertThat(answer.status()).isEqualTo(500);
        assertThat(read(answer.body()).get("code").asText()).isEqualTo("identity_differs");
        assertThat(service.bodies()).isEmpty();
        assertThat(outcomes).containsExactly("/v1/claims/" + other + "/outcome failure");
    }
}
