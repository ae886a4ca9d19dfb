package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.object;
import static org.junit.jupiter.api.DynamicContainer.dynamicContainer;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicContainer;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Runs the behaviour vectors: the same in every language. */
@Execution(ExecutionMode.CONCURRENT)
class BehaviourTest {
    @TestFactory
    List<DynamicContainer> behaviour() throws IOException {
        try (Stream<Path> files = Files.list(Vectors.root().resolve("clients/vectors/behaviour"))) {
            return files.filter(file -> !file.endsWith("common.json"))
                    .sorted()
                    .map(BehaviourTest::cases)
                    .toList();
        }
    }

    private static DynamicContainer cases(Path file) {
        String name = file.getFileName().toString();
        var cases = list(Vectors.load("clients/vectors/behaviour/" + name).get("cases"));
        return dynamicContainer(
                name,
                cases.stream()
                        .map(
                                each ->
                                        dynamicTest(
                                                (String) object(each).get("name"),
                                                () -> new CaseRun(object(each)).run())));
    }
}
