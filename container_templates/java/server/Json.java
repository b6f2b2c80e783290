package transship.server;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParseException;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.JsonNodeType;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.TextNode;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.Function;
import transship.Interval;

/** Values to and from the JSON form of docs/types.md. */
final class Json {
    private Json() {}

    private static final int MAX_BYTES = 1 << 30;
    /** Digits before and behind the point that a decimal of PostgreSQL has at most. */
    private static final int MAX_WHOLE_DIGITS = 131_072;
    private static final int MAX_FRACTION_DIGITS = 16_383;
    private static final int MAX_NUMBER_LENGTH = 150_000;
    private static final int MAX_INT8_DIGITS = 19;
    /** Of the text of an integer, in which zeros may lead. Time to read one grows with the square of its length. */
    private static final int MAX_INTEGER_LENGTH = 64;
    static final ObjectMapper MAPPER = new ObjectMapper(JsonFactory.builder()
        .streamReadConstraints(StreamReadConstraints.builder().maxStringLength(MAX_BYTES).maxDocumentLength(MAX_BYTES).maxNumberLength(MAX_NUMBER_LENGTH).build())
        .build()).enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    private static final long MAX_SAFE_INTEGER = 1L << 53;
    private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("HH:mm:ss.SSSSSS");
    private static final DateTimeFormatter TIMESTAMP = DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS");

    /** A number that is no integer, by its text: a decimal has more digits than a double, and zero has a sign. */
    private static final class NumberText extends TextNode {
        private static final long serialVersionUID = 1;

        NumberText(String text) {
            super(text);
        }

        @Override
        public JsonNodeType getNodeType() {
            return JsonNodeType.NUMBER;
        }
    }

    /** Reads a request. Numbers are not rounded. */
    static JsonNode readRequest(byte[] body) throws IOException {
        try (JsonParser parser = MAPPER.createParser(body)) {
            if (parser.nextToken() == null) return NODES.missingNode();
            JsonNode value = readNode(parser);
            if (parser.nextToken() != null) throw new JsonParseException(parser, "it has more than one value");
            return value;
        }
    }

    private static JsonNode readNode(JsonParser parser) throws IOException {
        switch (parser.currentToken()) {
            case START_OBJECT: {
                ObjectNode node = NODES.objectNode();
                while (parser.nextToken() != JsonToken.END_OBJECT) {
                    String name = parser.currentName();
                    parser.nextToken();
                    node.set(name, readNode(parser));
                }
                return node;
            }
            case START_ARRAY: {
                ArrayNode node = NODES.arrayNode();
                while (parser.nextToken() != JsonToken.END_ARRAY) node.add(readNode(parser));
                return node;
            }
            case VALUE_STRING: return NODES.textNode(parser.getText());
            case VALUE_NUMBER_INT: return parser.getNumberType() == JsonParser.NumberType.BIG_INTEGER ? new NumberText(parser.getText()) : NODES.numberNode(parser.getLongValue());
            case VALUE_NUMBER_FLOAT: return new NumberText(parser.getText());
            case VALUE_TRUE: return NODES.booleanNode(true);
            case VALUE_FALSE: return NODES.booleanNode(false);
            case VALUE_NULL: return NODES.nullNode();
            default: throw new JsonParseException(parser, "it is cut off");
        }
    }

    /** The handler's value of a JSON value; Misfit if it is not of the type. */
    static Object read(SqlType type, JsonNode node) {
        if (node == null || node.isNull()) return null;
        return switch (type.type()) {
            case "bool" -> {
                if (!node.isBoolean()) throw new Values.Misfit(node);
                yield node.booleanValue();
            }
            case "int2" -> (short) integer(node, Short.MIN_VALUE, Short.MAX_VALUE);
            case "int4" -> (int) integer(node, Integer.MIN_VALUE, Integer.MAX_VALUE);
            case "int8" -> integer(node, Long.MIN_VALUE, Long.MAX_VALUE);
            case "float4" -> {
                float value = parse(node, Float::parseFloat);
                if (Float.isInfinite(value) && node.isNumber()) throw new Values.Misfit(node);
                yield value;
            }
            case "float8" -> {
                double value = parse(node, Double::parseDouble);
                if (Double.isInfinite(value) && node.isNumber()) throw new Values.Misfit(node);
                yield value;
            }
            case "bytea" -> parse(node, text -> Base64.getDecoder().decode(text.replaceAll("\\s", "")));
            case "date" -> parse(node, LocalDate::parse);
            case "timestamp" -> parse(node, LocalDateTime::parse);
            case "timestamptz" -> parse(node, text -> OffsetDateTime.parse(text).withOffsetSameInstant(ZoneOffset.UTC));
            case "time" -> parse(node, LocalTime::parse);
            case "uuid" -> parse(node, text -> {
                if (text.length() != 36) throw new IllegalArgumentException();
                return UUID.fromString(text);
            });
            case "interval" -> {
                long micros = part(node, "microseconds");
                long nanos = Math.addExact(Math.multiplyExact(micros, 1000), part(node, "nanoseconds"));
                yield new Interval(Math.toIntExact(part(node, "months")), Math.toIntExact(part(node, "days")), nanos);
            }
            case "array" -> {
                if (!node.isArray()) throw new Values.Misfit(node);
                List<Object> values = new ArrayList<>();
                for (JsonNode element : node) values.add(read(type.element(), element));
                yield values;
            }
            case "range", "composite" -> {
                if (!node.isObject()) throw new Values.Misfit(node);
                Map<String, Object> values = new LinkedHashMap<>();
                for (SqlType.Column part : type.parts()) values.put(part.name(), read(part.type(), node.get(part.name())));
                yield values;
            }
            default -> {
                boolean isDecimal = type.type().equals("numeric") && node.isNumber();
                if (!node.isTextual() && !isDecimal) throw new Values.Misfit(node);
                yield isDecimal ? parse(node, text -> digits(new BigDecimal(text))) : node.asText();
            }
        };
    }

    private static <T> T parse(JsonNode node, Function<String, T> read) {
        try {
            if (node.isValueNode() && !node.isBoolean()) return read.apply(node.asText());
        } catch (RuntimeException cause) {
            // It is told below.
        }
        throw new Values.Misfit(node);
    }

    private static long part(JsonNode node, String name) {
        if (!node.isObject()) throw new Values.Misfit(node);
        return node.has(name) ? integer(node.get(name), Long.MIN_VALUE, Long.MAX_VALUE) : 0;
    }

    private static long integer(JsonNode node, long min, long max) {
        if (node.isTextual() && node.textValue().length() > MAX_INTEGER_LENGTH) throw new Values.Misfit(node);
        BigInteger value = parse(node, text -> node.isTextual() ? new BigInteger(text) : whole(new BigDecimal(text)));
        if (value.bitLength() > 63 || value.longValue() < min || value.longValue() > max) throw new Values.Misfit(node);
        return value.longValue();
    }

    /** A decimal's digits without an exponent; ArithmeticException if PostgreSQL's numeric has no room for them. */
    static String digits(BigDecimal number) {
        if (number.signum() == 0 && number.scale() < 0) return "0";
        boolean isTooLarge = (long) number.precision() - number.scale() > MAX_WHOLE_DIGITS;
        if (number.scale() > MAX_FRACTION_DIGITS || (isTooLarge && number.signum() != 0)) throw new ArithmeticException();
        return number.toPlainString();
    }

    /** A short exponent may stand for any number of digits. */
    private static BigInteger whole(BigDecimal number) {
        if (number.signum() != 0 && (long) number.precision() - number.scale() > MAX_INT8_DIGITS) throw new ArithmeticException();
        return number.toBigIntegerExact();
    }

    /** The JSON value of a result; Misfit if it does not fit its type. */
    static JsonNode write(SqlType type, Object value) {
        Object plain = Values.unwrap(type, value);
        if (plain == null) return NODES.nullNode();
        return switch (type.type()) {
            case "bool" -> NODES.booleanNode((Boolean) plain);
            case "int2" -> NODES.numberNode((Short) plain);
            case "int4" -> NODES.numberNode((Integer) plain);
            case "int8" -> integer((Long) plain);
            case "float4" -> {
                float number = (Float) plain;
                yield Float.isFinite(number) ? NODES.numberNode(number) : NODES.textNode(Float.toString(number));
            }
            case "float8" -> {
                double number = (Double) plain;
                yield Double.isFinite(number) ? NODES.numberNode(number) : NODES.textNode(Double.toString(number));
            }
            case "bytea" -> NODES.textNode(Base64.getEncoder().encodeToString((byte[]) plain));
            case "date" -> NODES.textNode(plain.toString());
            case "timestamp" -> NODES.textNode(microseconds((LocalDateTime) plain));
            case "timestamptz" -> NODES.textNode(microseconds(((OffsetDateTime) plain).withOffsetSameInstant(ZoneOffset.UTC).toLocalDateTime()) + "Z");
            case "time" -> NODES.textNode(((LocalTime) plain).format(TIME));
            case "interval" -> {
                Interval interval = (Interval) plain;
                ObjectNode node = NODES.objectNode().put("months", interval.months()).put("days", interval.days());
                node.set("microseconds", integer(interval.nanoseconds() / 1000));
                yield interval.nanoseconds() % 1000 == 0 ? node : node.put("nanoseconds", interval.nanoseconds() % 1000);
            }
            case "array" -> {
                ArrayNode node = NODES.arrayNode();
                for (Object element : (Collection<?>) plain) node.add(write(type.element(), element));
                yield node;
            }
            case "range", "composite" -> {
                ObjectNode node = NODES.objectNode();
                for (SqlType.Column part : type.parts()) node.set(part.name(), write(part.type(), ((Map<?, ?>) plain).get(part.name())));
                yield node;
            }
            default -> NODES.textNode(plain.toString());
        };
    }

    private static JsonNode integer(long number) {
        boolean isSafe = number >= -MAX_SAFE_INTEGER && number <= MAX_SAFE_INTEGER;
        return isSafe ? NODES.numberNode(number) : NODES.textNode(Long.toString(number));
    }

    private static String microseconds(LocalDateTime time) {
        if (time.getNano() % 1000 != 0) throw new Values.Misfit(time);
        return time.format(TIMESTAMP);
    }
}
