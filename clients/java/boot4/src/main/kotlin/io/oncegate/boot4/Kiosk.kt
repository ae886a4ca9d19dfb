package io.oncegate.boot4

import io.oncegate.spring.Once
import java.time.Duration
import java.time.Instant
import java.time.LocalDate
import java.util.concurrent.atomic.AtomicInteger
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.delay
import org.springframework.stereotype.Service

/** Sells seats in coroutines. */
@Service
class Kiosk {
    private val sales = AtomicInteger()

    fun sales() = sales.get()

    /** Sells a seat once; the work ends when the door opens. */
    @Once(operation = "boot4.sell", key = "{seat: #seat}")
    suspend fun sell(seat: String, begun: CompletableDeferred<Unit>, door: CompletableDeferred<Unit>): Ticket {
        begun.complete(Unit)
        delay(10)
        door.await()
        sales.incrementAndGet()
        return Ticket(seat, Instant.now(), LocalDate.of(2026, 11, 27), Duration.ofMinutes(90))
    }

    @Once(operation = "boot4.jam", key = "{seat: #seat}")
    suspend fun jam(seat: String): Ticket {
        delay(10)
        throw IllegalStateException("the printer of $seat is jammed")
    }
}
