package io.oncegate.boot4;

import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;

/** A result with times, which Jackson 3 writes and reads. */
public record Ticket(String seat, Instant at, LocalDate day, Duration lasts) {}
