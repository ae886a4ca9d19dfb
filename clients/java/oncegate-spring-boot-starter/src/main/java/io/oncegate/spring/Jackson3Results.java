package io.oncegate.spring;

import java.lang.reflect.Type;
import tools.jackson.databind.ObjectMapper;

/** Results with Jackson 3, which Spring Boot 4 has. */
final class Jackson3Results implements ResultMapper {
    private final ObjectMapper mapper;

    Jackson3Results(ObjectMapper mapper) {
        this.mapper = mapper;
    }

    @Override
    public String write(Object result) {
        return mapper.writeValueAsString(result);
    }

    @Override
    public Object read(String json, Type type) {
        return mapper.readValue(json, mapper.constructType(type));
    }
}
