package io.oncegate.boot4;

import io.oncegate.spring.Once;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.stereotype.Service;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;

/** A box office on Spring Boot 4. */
@SpringBootApplication
public class Shop {
    /** Books seats. */
    @Service
    public static class BoxOffice {
        private final AtomicInteger booked = new AtomicInteger();

        /** Books a seat once. */
        @Once(operation = "boot4.book", key = "{seat: #seat}")
        public Ticket book(String seat) {
            booked.incrementAndGet();
            return new Ticket(seat, Instant.now(), LocalDate.of(2026, 11, 27), Duration.ofMinutes(90));
        }

        /** Returns how often a seat was booked. */
        public int booked() {
            return booked.get();
        }
    }

    @RestController
    static class Desk {
        private final BoxOffice office;

        Desk(BoxOffice office) {
            this.office = office;
        }

        @PostMapping("/seats/{seat}")
        Ticket book(@PathVariable String seat) {
            return office.book(seat);
        }
    }
}
