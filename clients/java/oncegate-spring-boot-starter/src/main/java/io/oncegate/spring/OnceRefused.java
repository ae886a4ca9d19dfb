package io.oncegate.spring;

import io.oncegate.client.http.Field;
import io.oncegate.client.http.Problem;
import java.net.URI;
import org.springframework.http.HttpHeaders;
import org.springframework.http.HttpStatusCode;
import org.springframework.http.ProblemDetail;
import org.springframework.web.ErrorResponse;

/** A {@link Once} method was not run. Spring answers it with its own status and problem. */
public abstract class OnceRefused extends RuntimeException implements ErrorResponse {
    private final transient Problem problem;

    OnceRefused(Problem problem, String message) {
        super(message);
        this.problem = problem;
    }

    @Override
    public HttpStatusCode getStatusCode() {
        return HttpStatusCode.valueOf(problem.status());
    }

    @Override
    public HttpHeaders getHeaders() {
        return headers(problem);
    }

    @Override
    public ProblemDetail getBody() {
        return detail(problem);
    }

    static HttpHeaders headers(Problem problem) {
        var headers = new HttpHeaders();
        for (Field field : problem.fields()) {
            headers.add(field.name(), field.value());
        }
        return headers;
    }

    static ProblemDetail detail(Problem problem) {
        ProblemDetail detail = ProblemDetail.forStatus(problem.status());
        detail.setType(URI.create(problem.type()));
        detail.setTitle(problem.title());
        detail.setDetail(problem.detail());
        detail.setProperty("code", problem.code());
        if (problem.state() != null) {
            detail.setProperty("state", problem.state());
        }
        return detail;
    }
}
