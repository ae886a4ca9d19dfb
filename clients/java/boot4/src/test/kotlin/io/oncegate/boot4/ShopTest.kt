package io.oncegate.boot4

import io.oncegate.boot4.Shop.BoxOffice
import io.oncegate.spring.DuplicateOperation
import java.net.URI
import java.net.http.HttpClient
import java.net.http.HttpRequest
import java.net.http.HttpResponse
import java.util.UUID
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.async
import kotlinx.coroutines.runBlocking
import org.assertj.core.api.Assertions.assertThat
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.assertThrows
import org.springframework.beans.factory.annotation.Autowired
import org.springframework.boot.test.context.SpringBootTest
import org.springframework.boot.test.context.SpringBootTest.WebEnvironment
import org.springframework.core.env.Environment

@SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT)
class ShopTest(
    @param:Autowired private val office: BoxOffice,
    @param:Autowired private val kiosk: Kiosk,
    @param:Autowired private val environment: Environment,
) {
    private val seat = UUID.randomUUID().toString()
    private val open = CompletableDeferred(Unit)

    @Test
    fun eightClicksGetOneTicketWithItsTimes() {
        val before = office.booked()
        val uri = URI("http://127.0.0.1:${environment.getProperty("local.server.port")}/seats/$seat")
        val request = HttpRequest.newBuilder(uri).POST(HttpRequest.BodyPublishers.noBody()).build()
        val answers = List(8) { HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()) }
        assertThat(answers.map { it.statusCode() }).containsOnly(200)
        assertThat(answers.map { it.body() }.toSet()).hasSize(1)
        assertThat(answers[0].body()).contains(seat, "2026-11-27", "\"at\":")
        assertThat(office.booked() - before).isEqualTo(1)
    }

    @Test
    fun aSuspendFunctionIsReportedWhenItEnds(): Unit = runBlocking {
        val before = kiosk.sales()
        val begun = CompletableDeferred<Unit>()
        val door = CompletableDeferred<Unit>()
        val first = async { kiosk.sell(seat, begun, door) }
        begun.await()
        // The second click finds the first one at work, also while that is suspended.
        val found = runCatching { kiosk.sell(seat, open, open) }.exceptionOrNull()
        assertThat(found).isInstanceOf(DuplicateOperation::class.java).hasMessageContaining("in_progress")
        door.complete(Unit)
        val ticket = first.await()
        assertThat(kiosk.sell(seat, open, open)).isEqualTo(ticket)
        assertThat(kiosk.sales() - before).isEqualTo(1)
        Unit
    }

    @Test
    fun aSuspendFunctionThatFailsIsUnknown() {
        val failed = assertThrows<IllegalStateException> { runBlocking { kiosk.jam(seat) } }
        assertThat(failed).hasMessageContaining("jammed")
        val found = assertThrows<DuplicateOperation> { runBlocking { kiosk.jam(seat) } }
        assertThat(found).hasMessageContaining("unknown")
    }
}
