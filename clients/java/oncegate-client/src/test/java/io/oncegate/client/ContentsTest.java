package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.object;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

class ContentsTest {
    record Order(@Named("order_id") String id, @Named("amount_cents") int amount) {}

    record HalfNamed(@Named("order_id") String id, int amount) {}

    @TestFactory
    List<DynamicTest> typedContentsHaveOneFormInEveryLanguage() {
        var vectors = Vectors.load("clients/vectors/contents.json");
        String app = (String) vectors.get("app_key");
        String operation = (String) vectors.get("operation");
        List<DynamicTest> tests = new ArrayList<>();
        for (Object each : list(vectors.get("accepted"))) {
            var vector = object(each);
            tests.add(
                    dynamicTest(
                            "accepted: " + vector.get("name"),
                            () -> {
                                Object contents = Typed.value(vector.get("input"));
                                assertEquals(vector.get("canonical"), Contents.canonical(contents));
                                assertEquals(
                                        vector.get("global_id"),
                                        Contents.globalId(app, operation, contents));
                            }));
        }
        for (Object each : list(vectors.get("refused"))) {
            var vector = object(each);
            tests.add(dynamicTest("refused: " + vector.get("name"), () -> isRefused(vector)));
        }
        return tests;
    }

    private static void isRefused(Map<String, Object> vector) {
        Object contents;
        try {
            contents = Typed.value(vector.get("input"));
        } catch (Typed.NotInJava not) {
            Assumptions.abort(not.getMessage());
            return;
        }
        var refused = assertThrows(NotCanonical.class, () -> Contents.canonical(contents));
        assertEquals(
                vector.get("reason") + " " + vector.get("path"),
                refused.reason() + " " + refused.path());
    }

    @TestFactory
    List<DynamicTest> jsonTextIsReadAsTheGatewayReadsIt() {
        var vectors = Vectors.load("tests/vectors/global_id.json");
        List<DynamicTest> tests = new ArrayList<>();
        for (Object each : list(vectors.get("accepted"))) {
            var vector = object(each);
            var contents = new JsonText((String) vector.get("contents_json"));
            String app = (String) vector.get("app_key");
            String operation = (String) vector.get("operation");
            tests.add(
                    dynamicTest(
                            "accepted: " + vector.get("contents_json"),
                            () ->
                                    assertEquals(
                                            vector.get("global_id"),
                                            Contents.globalId(app, operation, contents))));
        }
        for (Object each : list(vectors.get("refused"))) {
            var vector = object(each);
            var contents = new JsonText((String) vector.get("contents_json"));
            tests.add(
                    dynamicTest(
                            "refused: " + vector.get("why"),
                            () ->
                                    assertThrows(
                                            NotCanonical.class,
                                            () -> Contents.canonical(contents))));
        }
        return tests;
    }

    @Test
    void recordsHaveExplicitNames() {
        assertEquals(
                "{\"amount_cents\":1110,\"order_id\":\"A-1\"}",
                Contents.canonical(new Order("A-1", 1110)));
        assertEquals(
                "unsupported_type",
                assertThrows(NotCanonical.class, () -> Contents.canonical(new HalfNamed("A-1", 1)))
                        .reason());
    }
}
